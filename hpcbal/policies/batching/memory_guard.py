"""Limit a worker's batch by how full its accelerator's memory has become so far."""

from __future__ import annotations

from collections.abc import Sequence

from hpcbal.policies.batching.task import LEAST_FREE_MEMORY_SHARE, BatchTask, Observation

Counts = tuple[int, ...]


def largest_so_far(largest: Counts, observations: Sequence[Observation]) -> Counts:
    """The most samples that each worker has processed, the newest iteration included."""
    return tuple(max(most, seen.num_samples) for most, seen in zip(largest, observations, strict=True))


def most_in_memory(seen: Observation, largest: int, most: int) -> int:
    """The largest batch that a worker may get next, at most `most`.

    Observations contain the most memory needed since the group began to train this DNN. It is attributed to
    the largest batch so far, and that batch stays allowed. A larger batch may fill 95 %, assuming that all
    memory in use grows with the batch. If part of it does not grow (weights, optimizer), this is too strict,
    so one sample more is always allowed while 5 % are free. Its effect is seen before the next one.

    Args:
        largest: samples of the worker's largest batch so far, >= 0.
        most: limit without regard to memory, >= 0; returned if memory is not measured.

    Source: [LBBSP] Sec. 3.3.2. Deviation: the paper only decides who gets no more samples.
    """
    used = seen.device_memory_share
    if not used:
        return most
    if seen.memory_is_full:
        return min(most, largest)
    return int(min(most, max(largest * (1.0 - LEAST_FREE_MEMORY_SHARE) / used, largest + 1)))


def surely_in_memory(seen: Observation, largest: int, most: int) -> int:
    """The largest batch, at most `most`, that fits whatever part of the memory in use is fixed.

    If `used` belongs to the largest batch so far, a sample takes at most `used / largest`: exactly that if no
    part is fixed. By this estimate a batch may fill up to 95 %. If it is only one sample larger, it may fill
    all memory, because the effect of that sample is seen before the next one. `most_in_memory` is bolder: it
    allows one sample more without knowing what it takes.

    Args:
        largest: samples of the worker's largest batch so far, >= 0.
        most: limit without regard to memory, >= 0; returned if memory is not measured.

    Source: [LBBSP] Sec. 3.3.2. Deviation: the paper limits which workers grow, not by how much.
    """
    used = seen.device_memory_share
    if not used:
        return most
    if seen.memory_is_full:
        return min(most, largest)
    one_more = largest + (used * (largest + 1) <= largest)
    return int(min(most, max(largest * (1.0 - LEAST_FREE_MEMORY_SHARE) / used, one_more)))


def can_leave(
    leavers: Sequence[int], task: BatchTask, observations: Sequence[Observation], largest: Counts
) -> bool:
    """Whether workers can leave in this order, so that after each one the others can hold even shares.

    A smaller group starts with even shares and with nothing learnt about memory, so memory is checked before.
    If memory is not measured, only the limits count.

    Args:
        leavers: indices of the workers that leave one after the other.
        task, observations: of the group as it is.
        largest: samples of each worker's largest batch so far, >= 0.

    Returns: False also if no worker would be left.

    Source: [LBBSP] Sec. 3.3.2. Deviation: the paper removes a straggler without regard to the others' memory.
    """
    rooms = rooms_of(task, observations, largest)
    for worker in leavers:
        del rooms[worker]
        if not rooms or min(rooms.values()) < -(-task.num_samples // len(rooms)):
            return False
    return True


def rooms_of(task: BatchTask, observations: Sequence[Observation], largest: Counts) -> dict[int, int]:
    """The largest batch that each worker may get, by limits and memory, see `most_in_memory`."""
    several = zip(observations, largest, task.maxima, strict=True)
    return {i: most_in_memory(seen, most, limit) for i, (seen, most, limit) in enumerate(several)}

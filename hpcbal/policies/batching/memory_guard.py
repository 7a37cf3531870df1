"""How far a worker's batch may grow, by how full its accelerator's memory has become so far."""

from __future__ import annotations

from collections.abc import Sequence

from hpcbal.policies.batching.task import LEAST_FREE_MEMORY_SHARE, BatchTask, Observation

Counts = tuple[int, ...]


def largest_so_far(largest: Counts, observations: Sequence[Observation]) -> Counts:
    """Most samples that each worker has processed, with the newest iteration."""
    return tuple(max(most, seen.num_samples) for most, seen in zip(largest, observations, strict=True))


def most_in_memory(seen: Observation, largest: int, most: int) -> int:
    """The largest batch that a worker may be given next, at most `most`.

    Observations tell the most that was needed since the group trains this DNN, so it counts as that of the
    largest batch so far: that batch stays allowed, whatever is in use. A larger one may fill 95 % if all that
    is in use grew with the batch. Where a part of it does not (weights, optimizer), that is too little, so a
    single sample more is allowed too as long as 5 % are free; what it takes is seen before the next one.

    Args:
        largest: samples of the worker's largest batch so far, >= 0.
        most: samples that it may have whatever its memory, >= 0; the answer where memory is not measured.

    Source: [LBBSP] Sec. 3.3.2. Deviation: it tells only who gets no more samples.
    """
    used = seen.device_memory_share
    if not used:
        return most
    if seen.memory_is_full:
        return min(most, largest)
    return int(min(most, max(largest * (1.0 - LEAST_FREE_MEMORY_SHARE) / used, largest + 1)))


def surely_in_memory(seen: Observation, largest: int, most: int) -> int:
    """The largest batch, at most `most`, that fits however memory is divided into a fixed and a growing part.

    If `used` belongs to the largest batch so far, a sample takes at most `used / largest`, which is what it
    takes where nothing is fixed. Up to 95 % may be filled by that estimate; one sample more may fill the
    memory, as its use is seen before the next one. `most_in_memory` is bolder by that one sample: it risks it
    without knowing what it takes.

    Args:
        largest: samples of the worker's largest batch so far, >= 0.
        most: samples that it may have whatever its memory, >= 0; the answer where memory is not measured.

    Source: [LBBSP] Sec. 3.3.2. Deviation: the paper bounds who grows, not by how much.
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
    """Whether workers can leave in this order: whoever stays can hold an even share after each.

    A group that goes on without some starts with even shares and nothing learnt of its memory, so what is
    known of that counts before. Where memory is not measured, the limits alone do.

    Args:
        leavers: indices of the workers that leave one after the other.
        task, observations: of the group as it is.
        largest: samples of each worker's largest batch so far, >= 0.

    Returns: False also where nobody would be left.

    Source: [LBBSP] Sec. 3.3.2. Deviation: it removes a straggler whatever the others' memory.
    """
    rooms = rooms_of(task, observations, largest)
    for worker in leavers:
        del rooms[worker]
        if not rooms or min(rooms.values()) < -(-task.num_samples // len(rooms)):
            return False
    return True


def rooms_of(task: BatchTask, observations: Sequence[Observation], largest: Counts) -> dict[int, int]:
    """The largest batch that each worker may be given, by limits and memory, see `most_in_memory`."""
    several = zip(observations, largest, task.maxima, strict=True)
    return {i: most_in_memory(seen, most, limit) for i, (seen, most, limit) in enumerate(several)}

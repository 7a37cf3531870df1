"""Find a worker that holds up the others so much that they would be faster without it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcbal.policies.batching.curves import TimeCurves
from hpcbal.policies.batching.memory_guard import can_leave, rooms_of
from hpcbal.policies.batching.min_max import split_min_max
from hpcbal.policies.batching.task import BatchTask, Observation


def hopeless_worker(
    curves: TimeCurves,
    batch_sizes: Sequence[int],
    task: BatchTask,
    reachable: BatchTask,
    observations: Sequence[Observation],
    largest: tuple[int, ...],
    least_gain: float,
    before: int | None,
) -> int | None:
    """A worker that holds up the others with the least it can be given, if they are faster without it.

    Several workers that are as slow as the slowest shield each other: leaving one of them out gains nothing.
    They are judged together and offered one after the other; the one offered before stays the one. After each
    departure the workers that stay must be able to hold even shares, so after the first one those with the
    least room go first.

    Args:
        curves: expected times of the workers.
        batch_sizes: the split that is best for them all.
        task: of the group, with the limits that it began with.
        reachable: the same with what memory and experience allow for the next iteration.
        observations: of the last iteration.
        largest: samples of each worker's largest batch so far, >= 0.
        least_gain: share of the makespan that leaving workers out must save, 0..1.
        before: the worker that the last decision found, or None.

    Returns: index of the worker, or None where there is none, or where the others may lack memory.
    Source: [LBBSP] Sec. 3.3.2, Alg. 2, line 5, and the text before it. Deviation: the paper removes a worker
        whose batch would fall below 0.
    """
    times_s = curves.seconds(batch_sizes)
    wanted_s = (1.0 - least_gain) * float(times_s.max())
    slow = np.flatnonzero(times_s > wanted_s)
    rest = np.flatnonzero(times_s <= wanted_s)
    if any(batch_sizes[i] > max(reachable.minima[i], 1) for i in slow) or not len(rest):
        return None
    limits = tuple(reachable.limits[i] for i in rest)
    if sum(reachable.maxima[i] for i in rest) < task.num_samples:
        return None
    faster = TimeCurves(curves.floor_s[rest], curves.launch_s[rest], curves.slope_s[rest])
    if faster.makespan(split_min_max(faster, BatchTask(task.num_samples, limits))) >= wanted_s:
        return None
    rooms = rooms_of(task, observations, largest)
    least_room_first = sorted(slow.tolist(), key=rooms.__getitem__)
    for first in sorted(slow.tolist(), key=lambda i: (i != before, -times_s[i])):
        order = [first, *(i for i in least_room_first if i != first)]
        if can_leave(order, task, observations, largest):
            return int(first)
    return None

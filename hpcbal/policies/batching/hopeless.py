"""Find a worker so slow that the others would be faster without it."""

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
    """A worker that holds up the others even with its smallest share, if they are faster without it.

    Several equally slow workers shield each other, because leaving one of them out gains nothing. So they are
    judged together and offered one after the other; the worker that was offered before is offered again.
    After each removal the remaining workers must be able to hold even shares, so after the first one the
    workers with the least room are removed first.

    Args:
        curves: expected times of the workers.
        batch_sizes: the best split for all workers.
        task: of the group, with its original limits.
        reachable: the same task, limited to what is allowed in the next iteration.
        observations: of the last iteration.
        largest: samples of each worker's largest batch so far, >= 0.
        least_gain: share of the makespan that leaving workers out must save, 0..1.
        before: the worker that the last decision found, or None.

    Returns: index of the worker; None if there is none, or if the others may lack memory.
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

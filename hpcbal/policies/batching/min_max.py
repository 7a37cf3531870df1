"""Split a global batch so that the last worker finishes as early as whole samples allow."""

from __future__ import annotations

import numpy as np

from hpcbal.errors import PolicyError
from hpcbal.policies.batching.curves import FloatArray, IntArray, TimeCurves
from hpcbal.policies.batching.rounding import apportion
from hpcbal.policies.batching.task import BatchTask

_BISECTIONS = 30
"""They bring a deadline to within 1e-9 of its range."""


def split_min_max(curves: TimeCurves, task: BatchTask) -> tuple[int, ...]:
    """The split with the least makespan, exact for whole samples under the workers' limits.

    The least makespan T is one of the times t_i(x) and is found by bisection: a deadline can be kept if the
    workers finish enough samples by then. Each probe moves its bound to the next time that some worker
    actually takes, so the search ends at T itself and not near it.

    Several splits may have the makespan T. Workers that cannot finish before T take as many samples as they
    can within T; then the makespan of the other workers is minimised, and so on. `apportion` breaks the
    remaining ties.

    Args:
        curves: of the task's workers, in its order.

    Returns: samples of each worker.
    Raises: PolicyError: the curves are not those of the task's workers.
    Source: [LBBSP] Eq. 3. The paper solves it in real numbers for lines through 0 (Alg. 1) and approaches it
        step by step for other curves (Alg. 2).
    """
    if curves.num_workers != task.num_workers:
        raise PolicyError(f"got the curves of {curves.num_workers} workers for {task.num_workers}")
    minima = np.array(task.minima, np.int64)
    maxima = np.array(task.maxima, np.int64)
    sizes = minima.copy()
    open_ = np.arange(task.num_workers)
    missing = task.num_samples
    while open_.size:
        part = TimeCurves(curves.floor_s[open_], curves.launch_s[open_], curves.slope_s[open_])
        least, most = minima[open_], maxima[open_]
        makespan_s = _least_makespan(part, least, most, missing)
        at = part.within(makespan_s, least, most)
        late = part.seconds(least) >= makespan_s  # even their minimum takes until then
        if not late.any():
            sooner = part.within(float(np.nextafter(makespan_s, -np.inf)), least, most)
            sizes[open_] = sooner + _fill(at - sooner, missing - int(sooner.sum()))
            break
        room = at[late] - least[late]
        taken = least[late] + _fill(room, min(int(room.sum()), missing - int(least.sum())))
        sizes[open_[late]] = taken
        missing -= int(taken.sum())
        open_ = open_[~late]
    return tuple(int(size) for size in sizes)


def level_work(curves: TimeCurves, task: BatchTask) -> FloatArray:
    """The split of the task's work in real numbers with which all workers finish at the same time.

    A worker with a floor above that time gets what it finishes within its floor, and a worker at a limit gets
    this limit.

    Args:
        curves: of the task's workers, in its order.

    Returns: work of each worker, shape (num_workers,), with the sum `task.num_samples`.
    Source: [LBBSP] Eq. 3 in real numbers.
    """
    minima, maxima = np.array(task.minima, np.float64), np.array(task.maxima, np.float64)
    slopes = np.maximum(curves.slope_s, 1e-300)
    free = np.clip((curves.floor_s - curves.launch_s) / slopes, minima, maxima)
    low_s, high_s = 0.0, curves.makespan(maxima)
    for _ in range(_BISECTIONS):
        deadline_s = (low_s + high_s) / 2
        work = np.clip((deadline_s - curves.launch_s) / slopes, minima, maxima)
        if float(np.maximum(work, free).sum()) < task.num_samples:
            low_s = deadline_s
        else:
            high_s = deadline_s
    work = np.maximum(np.clip((high_s - curves.launch_s) / slopes, minima, maxima), free)
    total: float = work.sum()
    return work * (task.num_samples / total) if total > 0 else np.ones(task.num_workers)


def _fill(room: IntArray, number: int) -> IntArray:
    """Spread `number` samples over workers in proportion to their `room`."""
    return np.array(apportion(number, room.tolist(), maxima=room.tolist()), np.int64)


def _least_makespan(curves: TimeCurves, minima: IntArray, maxima: IntArray, num_samples: int) -> float:
    """The least time by which the workers finish `num_samples` samples: the time of one of them."""
    low_s = curves.makespan(minima)  # no split finishes earlier
    high_s = max(low_s, curves.makespan(maxima))
    while low_s < high_s:
        middle_s = low_s + (high_s - low_s) / 2
        deadline_s = middle_s if middle_s < high_s else low_s  # it may round to either neighbour
        sizes = curves.within(deadline_s, minima, maxima)
        if int(sizes.sum()) >= num_samples:
            high_s = max(low_s, curves.makespan(sizes))
        else:
            more = curves.seconds(np.minimum(sizes + 1, maxima))
            low_s = float(more[sizes < maxima].min())
    return low_s

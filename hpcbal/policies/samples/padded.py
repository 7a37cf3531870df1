"""Deal the samples of a fixed batch where a share costs its number of samples times the longest."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import itemgetter

import numpy as np

from hpcbal.errors import PolicyError
from hpcbal.policies.batching.time_curves import FloatArray, IntArray
from hpcbal.policies.samples.task import SampleTask

_ROUNDING = 1 + 1e-12
"""A quotient just below a whole number counts as that number."""
_CLOSE = 1e-6
"""The deadline that is found is later than the least one by at most this share of it."""
_MAX_BISECTIONS = 60
"""Enough for `_CLOSE`, unless the least deadline is 0."""
_MORE = 1 + 1e-9
"""Enough time for one worker that does all the work, and then some, also where rounding hides 1e-9 s."""
_GROWTH = 1.25
"""How much later the second deadline is than the first one; the growth grows too."""
_FEW_WORKERS = 16
"""Up to this number, Python's floats take less time than NumPy's arrays."""

Rooms = Callable[[float], tuple[list[int], list[float]]]
"""Given a deadline: the workers, and the work that each finishes by then; the most first."""


def deal_runs(task: SampleTask) -> IntArray:
    """Give each worker a run of the samples in descending order; the least deadline is found by bisection.

    Samples of similar size stay together, so that little is padded. A worker takes as many samples from the
    longest left as it finishes by the deadline. Workers that finish most by then come first, because the
    longest samples may fit on no other.

    Returns: the worker of each sample, int64, shape (num_samples,).
    Raises: PolicyError: the samples do not fit into the limits.
    """
    order = np.argsort(-task.sizes, kind="stable")
    sizes: list[float] = task.sizes[order].tolist()
    rank_of = np.empty(len(sizes), np.int64)
    if sizes:
        rank_of[order] = np.repeat(*_earliest_runs(task, sizes))
    return rank_of


def _earliest_runs(task: SampleTask, sizes: list[float]) -> tuple[list[int], list[int]]:
    """Workers in the order of their runs, and the length of each run, for about the least deadline.

    Each probe moves its bound to a time that matters: when the runs that it finds are done, or the next by
    which some worker finishes a sample more. With limits of work that next one is not known, because workers
    change places.
    """
    most = None if task.max_samples is None else task.max_samples.tolist()
    slopes: list[float] = task.slope_s.tolist()
    jumps = task.max_work is None
    if jumps and min(slopes) > 0:
        rooms = _rooms_in_one_order(slopes)
    else:
        rooms = _rooms_of_few(task) if task.num_workers <= _FEW_WORKERS else _rooms_of_many(task)
    low_s = _least_deadline(slopes, sizes)
    high_s = low_s
    enough_s = max(slopes) * (len(sizes) * sizes[0]) * _MORE + 1e-9
    growth, best = 1.0, None
    while best is None:
        best, then_s = _runs(*rooms(high_s), sizes, most, slopes)
        if best is not None:
            high_s = min(high_s, then_s)
            break
        if high_s >= enough_s:
            raise PolicyError(
                f"a step of {len(sizes)} samples does not fit on {task.num_workers} workers with the given "
                "limits; use a smaller batch, or raise the limits"
            )
        growth *= _GROWTH
        low_s = then_s if jumps and then_s < enough_s else high_s
        high_s = min(max(growth * high_s, low_s), enough_s) if high_s > 0 else enough_s
    for _ in range(_MAX_BISECTIONS):
        if high_s - low_s <= _CLOSE * high_s:
            break
        middle_s = (low_s + high_s) / 2
        found, then_s = _runs(*rooms(middle_s), sizes, most, slopes)
        if found is None:
            low_s = max(middle_s, then_s) if jumps else middle_s
        else:
            best, high_s = found, min(middle_s, then_s)
    return best


def _least_deadline(slopes: list[float], sizes: list[float]) -> float:
    """A time before which no split is done: that of the longest sample, and that of all without padding."""
    fastest = min(slopes)
    if fastest <= 0:
        return 0.0
    return max(fastest * sizes[0], sum(sizes) / sum(1.0 / slope for slope in slopes) / _MORE)


def _most_work(task: SampleTask) -> FloatArray:
    all_samples = 2 * len(task.sizes) * float(task.sizes.max())  # never rounded down to fewer
    limits = task.max_work
    return np.full(task.num_workers, all_samples) if limits is None else np.minimum(limits, all_samples)


def _rooms_in_one_order(slopes: list[float]) -> Rooms:
    """Without limits of work the fastest worker always comes first, and of equal ones the first."""
    workers = sorted(range(len(slopes)), key=slopes.__getitem__)
    ordered = [slopes[worker] for worker in workers]
    return lambda deadline_s: (workers, [deadline_s / slope for slope in ordered])


def _rooms_of_few(task: SampleTask) -> Rooms:
    rows = list(zip(task.slope_s.tolist(), _most_work(task).tolist(), strict=True))

    def rooms(deadline_s: float) -> tuple[list[int], list[float]]:
        found = []
        for worker, (slope_s, most) in enumerate(rows):
            found.append((min(deadline_s / slope_s, most) if slope_s > 0 else most, worker))
        found.sort(key=itemgetter(0), reverse=True)  # stable: of equal ones the first
        return [worker for _, worker in found], [room for room, _ in found]

    return rooms


def _rooms_of_many(task: SampleTask) -> Rooms:
    most = _most_work(task)
    is_line = task.slope_s > 0
    slopes = np.where(is_line, task.slope_s, 1.0)

    def rooms(deadline_s: float) -> tuple[list[int], list[float]]:
        with np.errstate(over="ignore"):
            room = np.where(is_line, np.minimum(deadline_s / slopes, most), most)
        workers = np.argsort(-room, kind="stable")
        return workers.tolist(), room[workers].tolist()

    return rooms


def _runs(
    workers: list[int], rooms: list[float], sizes: list[float], most: list[int] | None, slopes: list[float]
) -> tuple[tuple[list[int], list[int]] | None, float]:
    """Workers in the order of their runs, and the length of each run, and when these are done.

    None: the deadline is too early; then the next time by which some worker finishes one sample more.
    """
    lengths: list[int] = []
    start, left = 0, len(sizes)
    done_s, next_s = 0.0, math.inf
    for place, room in enumerate(rooms):
        # The quotient may be just below a whole number, or infinite where the sample is tiny.
        size, slope = sizes[start], slopes[workers[place]]
        length = int(min(room / size * _ROUNDING, left))
        is_full = most is not None and length >= most[workers[place]]
        if is_full and most is not None:
            length = most[workers[place]]
        if length >= left:
            return (workers[: place + 1], [*lengths, left]), max(done_s, slope * (left * size))
        lengths.append(length)
        done_s = max(done_s, slope * (length * size))
        if not is_full:
            next_s = min(next_s, slope * ((length + 1) * size))
        start += length
        left -= length
    return None, next_s

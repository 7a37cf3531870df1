"""Deal the samples of a fixed batch where a share costs its number of samples times the longest."""

from __future__ import annotations

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
    """Workers in the order of their runs, and the length of each run, for about the least deadline."""
    rooms = _rooms_of_few(task) if task.num_workers <= _FEW_WORKERS else _rooms_of_many(task)
    most = None if task.max_samples is None else task.max_samples.tolist()
    longest = sizes[0]
    low_s = high_s = float(task.slope_s.min()) * longest
    enough_s = float(task.slope_s.max()) * (len(sizes) * longest) * _MORE + 1e-9
    best = None
    while best is None:
        if high_s >= enough_s:
            raise PolicyError(
                f"a step of {len(sizes)} samples does not fit on {task.num_workers} workers with the given "
                "limits; use a smaller batch, or raise the limits"
            )
        low_s, high_s = high_s, min(2 * high_s, enough_s) if high_s > 0 else enough_s
        best = _runs(*rooms(high_s), sizes, most)
    for _ in range(_MAX_BISECTIONS):
        if high_s - low_s <= _CLOSE * high_s:
            break
        middle_s = (low_s + high_s) / 2
        found = _runs(*rooms(middle_s), sizes, most)
        if found is None:
            low_s = middle_s
        else:
            best, high_s = found, middle_s
    return best


def _most_work(task: SampleTask) -> FloatArray:
    all_samples = 2 * len(task.sizes) * float(task.sizes.max())  # never rounded down to fewer
    limits = task.max_work
    return np.full(task.num_workers, all_samples) if limits is None else np.minimum(limits, all_samples)


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
    workers: list[int], rooms: list[float], sizes: list[float], most: list[int] | None
) -> tuple[list[int], list[int]] | None:
    """Workers in the order of their runs, and the length of each run; None: the deadline is too early."""
    lengths: list[int] = []
    start, left = 0, len(sizes)
    for place, room in enumerate(rooms):
        # The quotient may be just below a whole number, or infinite where the sample is tiny.
        length = int(min(room / sizes[start] * _ROUNDING, left))
        if most is not None:
            length = min(length, most[workers[place]])
        if length >= left:
            return workers[: place + 1], [*lengths, left]
        lengths.append(length)
        start += length
        left -= length
    return None

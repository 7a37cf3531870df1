"""Deal the samples of a fixed batch to workers so that all of them finish at the same time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hpcbal.errors import PolicyError
from hpcbal.policies.batching.time_curves import FloatArray, IntArray
from hpcbal.policies.samples.padded import deal_runs
from hpcbal.policies.samples.task import SampleTask, StepCost

_LEAST_CHUNK = 4
"""A round of `_in_rounds` deals at least one sample to every 4th worker."""
_FEW_WORKERS = 16
"""Up to this number, samples are dealt one by one."""
_ROUNDING = 1 + 1e-12
"""A sum of sizes just above a limit of work counts as that limit."""


def deal(task: SampleTask) -> IntArray:
    """The worker of each sample of a step, int64, shape (num_samples,).

    The batch is not changed, so the weighted gradient is that of any other split, to rounding. If there are
    at least as many samples as workers that may take one, every worker gets one: it stays measured.

    Raises: PolicyError: the samples do not fit into the limits of work.
    """
    deal_out = deal_runs if task.cost is StepCost.PADDED else _longest_first
    return _one_for_each(task, deal_out(task))


def deal_by_weight(
    sizes: FloatArray,
    weights: FloatArray,
    cost: StepCost,
    max_samples: int | None = None,
    max_work: float | None = None,
) -> IntArray:
    """The worker of each sample of a step; each worker's work is in proportion to its weight.

    Args:
        sizes: of the samples, shape (num_samples,), > 0.
        weights: of the workers, shape (num_workers,), >= 0, at least one > 0; with 0 a worker gets nothing.
        cost: the work of a share.
        max_samples: most samples of one worker; an even share is always allowed. None: no limit.
        max_work: most work of one worker; None: no limit.

    Returns: int64, shape (num_samples,).
    Raises:
        PolicyError: the samples do not fit into the limits of work.
        SampleTooLargeError: one of them is larger than `max_work`.
    """
    used = weights > 0
    num_used = int(used.sum())
    slope_s = 1.0 / np.where(used, weights, 1.0)
    most = len(sizes) if max_samples is None else max(max_samples, -(-len(sizes) // max(num_used, 1)))
    samples = None if max_samples is None and used.all() else np.where(used, most, 0)
    work = None if max_work is None else np.full(len(weights), max_work)
    return deal(SampleTask(sizes, slope_s, cost, samples, work))


def _longest_first(task: SampleTask) -> IntArray:
    """Longest processing time first: each sample goes to the worker that then finishes first.

    Equal finishing times may leave no room for the last samples within the limits of work. Then the workers
    are filled one after the other, and if that fails too, they get equal work, whatever their speeds. Steps
    that only another assignment fits into the limits are refused: to find it is bin packing.

    Source: R. L. Graham, "Bounds on multiprocessing timing anomalies" (1969), on unlike machines.
    """
    order = np.argsort(-task.sizes, kind="stable")
    deal_out = _one_by_one if task.num_workers <= _FEW_WORKERS else _in_rounds
    sizes, rank_of = task.sizes[order], np.empty(len(order), np.int64)
    found = deal_out(task, sizes)
    if found is None and task.max_work is not None:
        found = _first_fit(task, sizes, task.max_work)
        if found is None:
            found = deal_out(_with_equal_speeds(task), sizes)
    if found is None:
        raise PolicyError(
            f"a step of {len(sizes)} samples with {sizes.sum():g} of work does not fit on {task.num_workers} "
            "workers with the given limits; use a smaller batch, or raise the limits"
        )
    rank_of[order] = found
    return rank_of


def _with_equal_speeds(task: SampleTask) -> SampleTask:
    return replace(task, slope_s=np.ones(task.num_workers))


def _first_fit(task: SampleTask, sizes: FloatArray, max_work: FloatArray) -> list[int] | None:
    """First fit of the samples in descending order, which packs well; the fastest workers are filled first.

    Returns: the worker of each sample; None if one of them finds no room.
    """
    workers = np.argsort(task.slope_s, kind="stable")
    room = max_work[workers] * _ROUNDING
    left = np.full(len(workers), len(sizes)) if task.max_samples is None else task.max_samples[workers]
    rank_of = []
    for size in sizes.tolist():
        has_room = (room >= size) & (left > 0)
        first = int(np.argmax(has_room))
        if not has_room[first]:
            return None
        room[first] -= size
        left[first] -= 1
        rank_of.append(int(workers[first]))
    return rank_of


def _one_by_one(task: SampleTask, sizes: FloatArray) -> list[int] | None:
    """For few workers: Python's floats take less time than NumPy's arrays. None: a sample finds no room."""
    slopes, workers = task.slope_s.tolist(), range(task.num_workers)
    room = [np.inf] * len(workers) if task.max_work is None else (task.max_work * _ROUNDING).tolist()
    left = [len(sizes)] * len(workers) if task.max_samples is None else task.max_samples.tolist()
    work, rank_of = [0.0] * len(workers), []
    for size in sizes.tolist():
        best, best_s = -1, np.inf
        for worker in workers:
            then = work[worker] + size
            finish_s = slopes[worker] * then
            if finish_s < best_s and left[worker] and then <= room[worker]:
                best, best_s = worker, finish_s
        if best < 0:
            return None
        work[best] += size
        left[best] -= 1
        rank_of.append(best)
    return rank_of


def _in_rounds(task: SampleTask, sizes: FloatArray) -> IntArray | None:
    """For many workers: rounds deal many samples at once. None: a sample finds no room.

    In a round, samples in descending order go to workers in the order in which these would finish with the
    first of them, up to the first worker that a second sample of an earlier one would precede. So the result
    is close to that of dealing one by one, except that a round is not shorter than 1 / `_LEAST_CHUNK` of the
    workers.
    """
    slope_s, num_workers, num_samples = task.slope_s, task.num_workers, len(sizes)
    rank_of, work = np.empty(num_samples, np.int64), np.zeros(num_workers)
    counts = np.zeros(num_workers, np.int64)
    least = max(1, num_workers // _LEAST_CHUNK)
    start = 0
    while start < num_samples:
        finish_s = slope_s * (work + sizes[start])
        if task.max_samples is not None or task.max_work is not None:
            finish_s[~_has_room(task, work, counts, sizes[start])] = np.inf
        by_finish = np.argsort(finish_s, kind="stable")
        finish_s = finish_s[by_finish]
        most = min(num_samples - start, int(np.searchsorted(finish_s, np.inf)))
        if not most:
            return None
        again_s = finish_s[:most] + slope_s[by_finish[:most]] * sizes[start + most - 1]
        in_turn = finish_s[1:most] < np.minimum.accumulate(again_s)[:-1]
        chunk = most if in_turn.all() else max(1 + int(np.argmin(in_turn)), min(least, most))
        takers = by_finish[:chunk]
        rank_of[start : start + chunk] = takers
        work[takers] += sizes[start : start + chunk]
        counts[takers] += 1
        start += chunk
    return rank_of


def _has_room(task: SampleTask, work: FloatArray, counts: IntArray, size: float) -> npt.NDArray[np.bool_]:
    """Which workers may take one more sample of this size."""
    has_room = np.ones(task.num_workers, np.bool_)
    if task.max_samples is not None:
        has_room &= counts < task.max_samples
    if task.max_work is not None:
        has_room &= work + size <= task.max_work * _ROUNDING
    return has_room


def _one_for_each(task: SampleTask, rank_of: IntArray) -> IntArray:
    """Give each idle worker that may take one the smallest sample of workers that have several."""
    counts = np.bincount(rank_of, minlength=task.num_workers)
    idle = np.flatnonzero(counts == 0)
    if not len(idle) or len(rank_of) < task.num_workers:
        return rank_of
    nothing, none = np.zeros(task.num_workers), np.zeros(task.num_workers, np.int64)
    for worker in idle:
        spare = np.flatnonzero(counts[rank_of] > 1)
        smallest = spare[np.argmin(task.sizes[spare])]
        if _has_room(task, nothing, none, float(task.sizes[smallest]))[worker]:
            rank_of[smallest] = worker
            counts = np.bincount(rank_of, minlength=task.num_workers)
    return rank_of

"""Deal the samples of a fixed batch where a share costs its number of samples times the longest."""

from __future__ import annotations

import numpy as np

from hpcbal.errors import PolicyError
from hpcbal.policies.batching.curves import FloatArray, IntArray
from hpcbal.policies.samples.task import SampleTask

_ROUNDING = 1 + 1e-12
"""A quotient just below a whole number counts as that number."""
_BISECTIONS = 40
"""They bring the deadline to within 1e-12 of its range."""


def deal_runs(task: SampleTask) -> IntArray:
    """Give each worker a run of the samples in descending order; the least deadline is found by bisection.

    Samples of similar size stay together, so that little is padded. A worker takes as many samples from the
    longest left as it finishes by the deadline. Workers that finish most by then come first, because the
    longest samples may fit on no other.

    Returns: the worker of each sample, int64, shape (num_samples,).
    Raises: PolicyError: the samples do not fit into the limits.
    """
    order = np.argsort(-task.sizes, kind="stable")
    sizes = task.sizes[order]
    low_s, high_s = 0.0, _enough_s(task, sizes)
    best = _runs(task, sizes, high_s)
    if best is None:
        raise PolicyError(
            f"a step of {len(sizes)} samples does not fit on {task.num_workers} workers with the given "
            "limits; use a smaller batch, or raise the limits"
        )
    for _ in range(_BISECTIONS):
        middle_s = (low_s + high_s) / 2
        found = _runs(task, sizes, middle_s)
        if found is None:
            low_s = middle_s
        else:
            best, high_s = found, middle_s
    rank_of = np.empty(len(sizes), np.int64)
    rank_of[order] = np.repeat(best[0], best[1])
    return rank_of


def _enough_s(task: SampleTask, sizes: FloatArray) -> float:
    """A deadline that every worker keeps with all samples."""
    largest = float(sizes[0]) if len(sizes) else 0.0
    return float(task.curves.seconds(np.full(task.num_workers, len(sizes) * largest)).max()) + 1e-9


def _runs(task: SampleTask, sizes: FloatArray, deadline_s: float) -> tuple[IntArray, IntArray] | None:
    """Workers in the order of their runs, and the length of each run; None: the deadline is too early."""
    curves = task.curves
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        room = (deadline_s - curves.launch_s) / curves.slope_s
    room = np.where(curves.slope_s > 0, room, np.where(curves.launch_s <= deadline_s, np.inf, 0.0))
    room = np.where(curves.floor_s <= deadline_s, room, 0.0)
    if task.max_work is not None:
        room = np.minimum(room, task.max_work)
    room = np.maximum(room, 0.0)
    workers = np.argsort(-room, kind="stable")
    most = None if task.max_samples is None else task.max_samples[workers].tolist()
    lengths, start, num_samples = [], 0, len(sizes)
    left: list[float] = sizes.tolist()
    for place, space in enumerate(room[workers].tolist()):
        length = 0
        if start < num_samples:
            # The quotient may be just below a whole number, or infinite.
            length = int(min(space / left[start] * _ROUNDING, num_samples - start))
            if most is not None:
                length = min(length, most[place])
        lengths.append(length)
        start += length
    return None if start < num_samples else (workers, np.array(lengths, np.int64))

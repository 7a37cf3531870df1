"""The values of policies for samples of unequal size: what a step holds, and what its workers cost."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from hpcbal.errors import PolicyError
from hpcbal.policies.batching.time_curves import FloatArray, IntArray

MAX_WORK = 1e150
"""Most work of all samples, in the unit of their sizes: sums, squares and times stay finite."""


class StepCost(Enum):
    """The work of a worker's share of a step.

    Attributes:
        SUM: the sum of its samples' sizes, where samples travel through the model without padding.
        PADDED: their number times the longest, where the model pads them to one length.
    """

    SUM = "sum"
    PADDED = "padded"

    def of(self, sizes: FloatArray) -> float:
        """The work of a share with these sizes, shape (n,); 0 without samples."""
        if not len(sizes):
            return 0.0
        return float(sizes.sum()) if self is StepCost.SUM else float(len(sizes) * sizes.max())

    def of_workers(self, sizes: FloatArray, rank_of: IntArray, num_workers: int) -> FloatArray:
        """Work of each worker if sample i goes to worker `rank_of[i]`, shape (num_workers,)."""
        if self is StepCost.SUM:
            return np.bincount(rank_of, sizes, num_workers).astype(np.float64)
        longest = np.zeros(num_workers)
        np.maximum.at(longest, rank_of, sizes)
        return np.bincount(rank_of, minlength=num_workers) * longest


class SampleTooLargeError(PolicyError):
    """A sample fits on no worker.

    Attributes:
        index: its place in the step.
        size: its size.
        most: the largest work that a worker may get.
    """

    def __init__(self, index: int, size: float, most: float) -> None:
        self.index, self.size, self.most = index, size, most
        super().__init__(
            f"the sample at place {index} of the step has size {size:g}, and no worker takes more than "
            f"{most:g}; allowed: a sample that fits on a worker. Raise the limit, or leave the sample out"
        )


@dataclass(frozen=True, slots=True, eq=False)
class SampleTask:
    """One step: its samples, and the workers that share it.

    Attributes:
        sizes: relative size of each sample, shape (num_samples,), finite and > 0.
        slope_s: seconds of each worker for one unit of work, >= 0, shape (num_workers,).
        cost: the work of a share.
        max_samples: most samples of each worker, >= 0, shape (num_workers,); None: no limit.
        max_work: most work of each worker, > 0, shape (num_workers,); None: no limit.

    Raises:
        PolicyError: a value is out of range, or the limits hold fewer samples than there are.
        SampleTooLargeError: a sample fits on no worker.
    """

    sizes: FloatArray
    slope_s: FloatArray
    cost: StepCost = StepCost.SUM
    max_samples: IntArray | None = None
    max_work: FloatArray | None = None

    def __post_init__(self) -> None:
        checked_sizes(self.sizes)
        num_workers = self.num_workers
        if not num_workers:
            raise PolicyError("a step got no workers; allowed: 1 or more")
        for name, limits, least in (("samples", self.max_samples, 0), ("work", self.max_work, 0)):
            if limits is None:
                continue
            if len(limits) != num_workers or not (limits >= least).all():
                raise PolicyError(
                    f"limits of {name}: got {limits.tolist()} for {num_workers} workers; allowed: one of 0 "
                    "or more for each"
                )
        room = len(self.sizes) if self.max_samples is None else int(self.max_samples.sum())
        if room < len(self.sizes):
            raise PolicyError(
                f"the step has {len(self.sizes)} samples, and its workers take at most {room}; use a smaller "
                "batch, or raise the limits"
            )
        if self.max_work is not None and len(self.sizes):
            usable = self.max_work if self.max_samples is None else self.max_work[self.max_samples > 0]
            largest, most = int(np.argmax(self.sizes)), float(usable.max(initial=0.0))
            if self.sizes[largest] > most:
                raise SampleTooLargeError(largest, float(self.sizes[largest]), most)

    @property
    def num_workers(self) -> int:
        return len(self.slope_s)

    def work(self, rank_of: IntArray) -> FloatArray:
        """Work of each worker if sample i goes to worker `rank_of[i]`, shape (num_workers,)."""
        return self.cost.of_workers(self.sizes, rank_of, self.num_workers)

    def seconds(self, rank_of: IntArray) -> FloatArray:
        """Time of each worker, shape (num_workers,)."""
        return self.slope_s * self.work(rank_of)


def checked_sizes(sizes: npt.ArrayLike, num_samples: int | None = None) -> FloatArray:
    """Sizes as float64.

    Args:
        sizes: one per sample.
        num_samples: how many there must be; None: any number.

    Raises: PolicyError: their number or a value is wrong, or their number times the largest exceeds
        `MAX_WORK`; the message names the first wrong sample, or the largest.
    """
    checked = np.asarray(sizes, np.float64)
    if checked.ndim != 1 or (num_samples is not None and len(checked) != num_samples):
        raise PolicyError(
            f"sizes of samples: got an array of shape {checked.shape}, allowed: one number for each "
            f"of the {'' if num_samples is None else f'{num_samples} '}samples"
        )
    wrong = np.flatnonzero(~(np.isfinite(checked) & (checked > 0)))
    if len(wrong):
        raise PolicyError(
            f"size of sample {wrong[0]}: got {checked[wrong[0]]}, allowed: a finite number above 0"
        )
    if len(checked) and float(checked.max()) > MAX_WORK / len(checked):
        largest = int(np.argmax(checked))
        raise PolicyError(
            f"size of sample {largest}, the largest: got {checked[largest]:g}, allowed: at most "
            f"{MAX_WORK / len(checked):g} with {len(checked)} samples; divide all sizes by the same number"
        )
    return checked


def imbalance(sizes: FloatArray) -> float:
    """The data imbalance factor (DIF): standard deviation of the sizes, in their unit.

    Source: [CHRONICA] Table I.
    """
    return float(sizes.std(ddof=1)) if len(sizes) > 1 else 0.0

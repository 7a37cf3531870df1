"""Deal the samples of a step to the ranks of a group where they differ in size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcbal.config.schema.ensemble import BalanceConfig
from hpcbal.errors import PolicyError
from hpcbal.policies.samples.task import SampleTooLargeError, StepCost
from hpcbal.policies.samples.within_batch import deal_by_weight
from hpcbal.policies.selection import StepShares
from hpcbal.training.groups import GroupFailed

Sizes = NDArray[np.float64]

_WORK_IS = {
    StepCost.PADDED: "the number of samples times the longest (balance.cost: padded)",
    StepCost.SUM: "the sum of the sizes (balance.cost: sum)",
}


@dataclass(frozen=True, slots=True)
class DealtStep:
    """Who takes which samples of a step.

    Attributes:
        shares: each rank's positions.
        work: of each rank, in samples of mean size.
        slowest: the work that a rank of mean weight does while the slowest one does its own, in samples of
            mean size; the mean of `work` if all finish together.
        weights: what each rank's mean gradient counts in the step, with the sum 1; None: its number of
            samples.
        padding_limits: see `Batch.padding_limit`, for each rank.
    """

    shares: StepShares
    work: tuple[float, ...]
    slowest: float
    weights: tuple[float, ...] | None
    padding_limits: tuple[float, ...]


class Dealer:
    """Deals out one step after another; every rank of the group has one, and all get the same results.

    Work is measured in samples of mean size, so that shares and speeds mean the same as for equal samples.

    Args:
        settings: `samples`, `cost`, `gradient_weights` and the limits are used.
        mean_size: of all training samples, if the dataset declares sizes; None: sizes are measured lengths,
            and their mean is that of the samples in the steps so far.

    Source: [CHRONICA] Alg. 4 and Eq. 7 for the weights by size. Reading: the gradient of a worker is the mean
        over its samples, so each of them counts the mean size of its share, and another split changes that.
        Only where the loss of a worker is a mean over frames, as in the paper's example, do all frames count
        the same.
    """

    def __init__(self, settings: BalanceConfig, mean_size: float | None = None) -> None:
        self._is_in_order = settings.samples != "within-batch"
        self._cost = StepCost(settings.cost)
        self._max_samples = settings.max_samples_per_slot
        self._max_work = settings.max_work_per_slot
        self._weighs_by_size = settings.gradient_weights == "size"
        self._mean_size = mean_size
        self._sum = 0.0
        self._count = 0

    def deal(
        self, shares: StepShares, ids: NDArray[np.int64], sizes: Sizes, weights: Sequence[float]
    ) -> DealtStep:
        """Deal out one step.

        Args:
            shares: neighbours for each rank, by number of samples alone.
            ids: of the samples, for errors, shape (num_positions,).
            sizes: relative sizes of the step's samples by position, shape (num_positions,); 0: broken.
            weights: the part of the work that each rank should get; only their proportions count.

        Raises:
            GroupFailed: on all ranks of the group, because all decide alike: a sample is larger than
                `max_work_per_slot`, or the step does not fit into the limits.
        """
        good = np.flatnonzero(sizes > 0)
        num_ranks = len(shares.counts)
        if self._is_in_order:
            rank_of = np.repeat(np.arange(num_ranks), shares.counts)
        else:
            rank_of = np.zeros(len(sizes), np.int64)
            rank_of[good] = self._ranks(ids[good], sizes[good], np.array(weights, np.float64))
            shares = StepShares.dealt(shares.start, rank_of, num_ranks, shares.picked)
        rank_of, sizes = rank_of[good], sizes[good]
        costs = self._cost.of_workers(sizes, rank_of, num_ranks)
        work = tuple((costs / self._unit(sizes)).tolist())
        mean_weight = sum(weights) / num_ranks
        slowest = max(own * mean_weight / weight for own, weight in zip(work, weights, strict=True) if weight)
        by_size = self._gradient_weights(sizes, rank_of, num_ranks) if self._weighs_by_size else None
        return DealtStep(shares, work, slowest, by_size, self._padding_limits(costs))

    def _ranks(self, ids: NDArray[np.int64], sizes: Sizes, weights: Sizes) -> NDArray[np.int64]:
        try:
            return deal_by_weight(sizes, weights, self._cost, self._max_samples, self._max_work)
        except SampleTooLargeError as error:
            raise _refused(
                f"sample {ids[error.index]} has size {error.size:g}, allowed: at most "
                f"{error.most:g} (balance.max_work_per_slot); raise that limit, or leave the sample out"
            ) from error
        except PolicyError as error:
            if self._max_work is None:
                raise
            raise _refused(self._too_much(sizes, weights)) from error

    def _too_much(self, sizes: Sizes, weights: Sizes) -> str:
        """Why a step does not fit into the limits, and what would help."""
        num_slots = int(np.count_nonzero(weights))
        slots = "1 slot" if num_slots == 1 else f"one of {num_slots} slots"
        total = f"{sizes.sum():g} in all and " if self._cost is StepCost.SUM else ""
        needed = self._needed(sizes, num_slots, self._max_samples)
        limit, other_limit = "that limit", ""
        if self._max_samples is not None and self._needed(sizes, num_slots, None) < needed:
            most = max(self._max_samples, -(-len(sizes) // num_slots))
            other_limit = f"with at most {most} samples on each (balance.max_samples_per_slot), "
            limit = "one of these limits"
        return (
            f"a step of {len(sizes)} samples with sizes of {total}at most {sizes.max():g} needs {needed:g} "
            f"of work on {slots}, {other_limit}allowed: {self._max_work:g} (balance.max_work_per_slot), "
            f"where work is {_WORK_IS[self._cost]}; raise {limit}, use a smaller batch_size, or train the "
            "DNN on more slots"
        )

    def _needed(self, sizes: Sizes, num_slots: int, max_samples: int | None) -> float:
        """The limit of work with which a step fits: the most work of a slot if all get the same."""
        rank_of = deal_by_weight(sizes, np.ones(num_slots), self._cost, max_samples)
        return float(self._cost.of_workers(sizes, rank_of, num_slots).max())

    def _padding_limits(self, costs: Sizes) -> tuple[float, ...]:
        """Return for each rank its `Batch.padding_limit`: padding may not exceed the limit of work.

        Padding rounds lengths up. Measured sizes grow with the lengths. Declared ones may grow faster, so no
        length is rounded up then.
        """
        if self._is_in_order or self._max_work is None or self._cost is not StepCost.PADDED:
            return (math.inf,) * len(costs)
        if self._mean_size is not None:
            return (1.0,) * len(costs)
        return tuple(max(1.0, self._max_work / cost) if cost else math.inf for cost in costs.tolist())

    def _unit(self, sizes: Sizes) -> float:
        """The mean size, with the samples of a new step."""
        if self._mean_size is not None:
            return self._mean_size
        self._sum += float(sizes.sum())
        self._count += len(sizes)
        return self._sum / self._count if self._count else 1.0

    def _gradient_weights(
        self, sizes: Sizes, rank_of: NDArray[np.int64], num_ranks: int
    ) -> tuple[float, ...]:
        """[CHRONICA] Eq. 7: the share of the step's total size."""
        sums = StepCost.SUM.of_workers(sizes, rank_of, num_ranks)
        total = float(sums.sum())
        return tuple((sums / total if total else sums).tolist())


def _refused(text: str) -> GroupFailed:
    return GroupFailed("error", text, local=True)


def make_dealer(
    settings: BalanceConfig, *, is_sized: bool, num_ranks: int, mean_size: float | None = None
) -> Dealer | None:
    """A dealer for a group; None if its steps are split by numbers of samples alone.

    A rank alone has nothing to deal, but its steps must keep to the limit of work.
    """
    is_limited = settings.samples == "within-batch" and settings.max_work_per_slot is not None
    return Dealer(settings, mean_size) if is_sized and (num_ranks > 1 or is_limited) else None

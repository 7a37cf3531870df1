"""Deal the global batch of one step to the ranks: the same decision on every rank, without a message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcbal.errors import PolicyError, SamplerError
from hpcbal.policies.samples.task import StepCost, checked_sizes
from hpcbal.policies.samples.within_batch import deal_by_weight
from hpcbal.samplers.checks import number

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
SampleCost = Callable[[FloatArray], npt.ArrayLike]


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of one step.

    Attributes:
        epoch, step: the step's place, both counted from 0.
        num_samples, num_global: samples of this rank, and of the whole step.
        size, size_global: the sums of their sizes, as given to the sampler.
        cost: the work of this rank, in samples of mean cost.
    """

    epoch: int
    step: int
    num_samples: int
    num_global: int
    size: float
    size_global: float
    cost: float


class Dealer:
    """Deals the samples of any step to the ranks; every rank has one, and all get the same results.

    Args:
        sizes: of all samples, > 0, shape (num_samples,), for instance their numbers of tokens.
        cost: the work of a share: "padded", its number of samples times the largest size; "sum", the sum of
            its sizes; or a function that takes sizes as an array and returns for each the work of one sample
            that is padded to it. It must not fall where sizes grow.
        max_samples: most samples of a rank; None: no limit.
        max_cost: most work of a rank, in the unit of `cost`; None: no limit.

    Attributes:
        sizes, costs: of all samples; costs are the sizes, unless `cost` is a function.
        kind: how costs of samples become the work of a rank.

    Raises: SamplerError: a size or cost is wrong, or a sample alone exceeds `max_cost`.
    """

    def __init__(
        self,
        sizes: npt.ArrayLike,
        cost: str | SampleCost,
        max_samples: int | None = None,
        max_cost: float | None = None,
    ) -> None:
        self.sizes = _checked(sizes, "sizes")
        self.costs, self.kind = self.sizes, StepCost.PADDED
        if callable(cost):
            self.costs = _checked(cost(self.sizes), "cost(sizes)")
            if len(self.costs) != len(self.sizes):
                raise SamplerError(
                    f"cost(sizes): got {len(self.costs)} numbers for {len(self.sizes)} samples, allowed: "
                    "one for each"
                )
        elif cost in ("padded", "sum"):
            self.kind = StepCost(cost)
        else:
            raise SamplerError(f"cost: got {cost!r}, allowed: 'padded', 'sum', or a function of the sizes")
        self._max_samples = max_samples
        self._max_cost = None if max_cost is None else number(max_cost)
        largest = float(self.costs.max())
        if max_cost is not None and not number(max_cost) >= largest:
            raise SamplerError(
                f"max_cost_per_rank: got {max_cost!r}, but sample {int(self.costs.argmax())} alone costs "
                f"{largest:g}; raise the limit, or leave the sample out"
            )
        self._mean_cost = float(self.costs.mean())

    def deal(
        self, epoch: int, step: int, samples: IntArray, weights: FloatArray, rank: int
    ) -> tuple[list[int], Share]:
        """Return the samples of one rank, in the order of the batch, and its part of the step.

        Args:
            epoch, step: place of the step.
            samples: of the step, at least one for each rank.
            weights: of the ranks, > 0, shape (num_replicas,); only proportions count.

        Raises: SamplerError: the step does not fit into the limits.
        """
        costs = self.costs[samples]
        try:
            rank_of = deal_by_weight(costs, weights, self.kind, self._max_samples, self._max_cost)
        except PolicyError as error:
            raise SamplerError(f"max_cost_per_rank, max_per_rank: {error}") from error
        own = rank_of == rank
        sizes, mine = costs if self.costs is self.sizes else self.sizes[samples], costs[own]
        own_size = mine.sum() if sizes is costs else sizes[own].sum()
        work = self.kind.of(mine) / self._mean_cost
        share = Share(epoch, step, len(mine), len(costs), float(own_size), float(sizes.sum()), work)
        return samples[own].tolist(), share


def _checked(sizes: npt.ArrayLike, name: str) -> FloatArray:
    try:
        checked = checked_sizes(sizes)
    except PolicyError as error:
        raise SamplerError(f"{name}: {error}") from error
    except (TypeError, ValueError, RuntimeError) as error:  # the last: a tensor with a gradient
        raise SamplerError(f"{name}: got {type(sizes).__name__}, allowed: one number per sample") from error
    if not len(checked):
        raise SamplerError(f"{name}: got none, allowed: one number per sample, and a sample or more")
    return checked


def checked_speeds(speeds: Sequence[float] | None, num_replicas: int) -> FloatArray:
    """Return the given speeds of the ranks; equal ones for None.

    Raises: SamplerError: there is not one finite number above 0 for each rank.
    """
    if speeds is None:
        return np.ones(num_replicas)
    try:
        checked = np.asarray(speeds, np.float64)
    except (TypeError, ValueError):
        checked = np.zeros(0)
    if checked.shape != (num_replicas,) or not (np.isfinite(checked) & (checked > 0)).all():
        raise SamplerError(
            f"speeds: got {speeds!r}, allowed: a finite number above 0 for each of the {num_replicas} ranks, "
            "'measured', or None where all are equal"
        )
    return checked

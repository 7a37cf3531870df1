"""Even and fixed shares: plain BSP, and known speeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hpcbal.errors import PolicyError
from hpcbal.policies.batching.min_max import apportion
from hpcbal.policies.batching.task import (
    BatchingPolicy,
    BatchState,
    BatchTask,
    Cadence,
    Decision,
    Observation,
    check_observations,
)


def split_evenly(num_samples: int, num_workers: int) -> tuple[int, ...]:
    """Samples of each worker; the first `num_samples % num_workers` workers take one more.

    Args:
        num_samples: of the global batch, >= 0; if there are fewer than workers, some workers get none.
        num_workers: trainers of the group, >= 1.

    Returns: num_workers counts that differ by at most 1, largest first, with sum `num_samples`.
    Raises: PolicyError: an argument is out of range.
    """
    if num_samples < 0 or num_workers < 1:
        raise PolicyError(
            f"cannot split {num_samples} samples over {num_workers} workers; "
            "allowed: 0 or more samples, 1 or more workers"
        )
    share, num_larger = divmod(num_samples, num_workers)
    return (share + 1,) * num_larger + (share,) * (num_workers - num_larger)


def split_task_evenly(task: BatchTask) -> tuple[int, ...]:
    """Samples of each worker of the task, as even as the workers' limits allow."""
    return apportion(task.num_samples, (1.0,) * task.num_workers, task.minima, task.maxima)


@dataclass(frozen=True, slots=True)
class Even(BatchingPolicy[BatchState]):
    """BSP: every worker keeps the same share, however fast it is.

    Source: [LBBSP] Sec. 2.1.
    """

    cadence: ClassVar[Cadence] = Cadence.NEVER
    splits_evenly: ClassVar[bool] = True

    def start(self, task: BatchTask) -> BatchState:
        return BatchState(task, split_task_evenly(task))

    def decide(self, state: BatchState, observations: Sequence[Observation]) -> Decision[BatchState]:
        check_observations(state, observations)
        return Decision(state)


@dataclass(frozen=True, slots=True)
class Fixed(BatchingPolicy[BatchState]):
    """The same split in every iteration, whatever is observed.

    Attributes:
        shares: weights by worker, finite and > 0, at least one; more workers repeat them from the first.
            Their sum does not matter: (2, 1, 1) gives half of the batch to the first of three.

    Raises: PolicyError: there is no weight, or one is out of range.
    Source: [LBBSP] Sec. 3.5, footnote 5: workers with different batches that never change.
    """

    cadence: ClassVar[Cadence] = Cadence.NEVER
    takes_shares: ClassVar[bool] = True

    shares: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if not self.shares or not all(math.isfinite(share) and share > 0 for share in self.shares):
            raise PolicyError(
                f"fixed: shares: got {list(self.shares)}, allowed: one weight or more, finite and above 0"
            )

    def start(self, task: BatchTask) -> BatchState:
        """The state before the first iteration: shares in proportion to the weights, within limits."""
        weights = [self.shares[worker % len(self.shares)] for worker in range(task.num_workers)]
        return BatchState(task, apportion(task.num_samples, weights, task.minima, task.maxima))

    def decide(self, state: BatchState, observations: Sequence[Observation]) -> Decision[BatchState]:
        check_observations(state, observations)
        return Decision(state)

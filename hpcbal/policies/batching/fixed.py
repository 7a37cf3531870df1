"""Shares in proportion to weights that the user gives: for known speeds, and for comparisons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hpcbal.errors import PolicyError
from hpcbal.policies.batching.rounding import apportion
from hpcbal.policies.batching.task import (
    BatchingPolicy,
    BatchState,
    BatchTask,
    Cadence,
    Decision,
    Observation,
    check_observations,
)


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

"""Plain BSP: every worker keeps the same share, however fast it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcbal.policies.batching.rounding import apportion
from hpcbal.policies.batching.task import (
    BatchingPolicy,
    BatchState,
    BatchTask,
    Decision,
    Observation,
    check_observations,
)


def even_sizes(task: BatchTask) -> tuple[int, ...]:
    """The task's samples, as even as the workers' limits allow."""
    return apportion(task.num_samples, (1.0,) * task.num_workers, task.minima, task.maxima)


@dataclass(frozen=True, slots=True)
class Even(BatchingPolicy[BatchState]):
    """BSP: the even split, whatever is observed.

    Source: [LBBSP] Sec. 2.1.
    """

    def start(self, task: BatchTask) -> BatchState:
        """As `BatchingPolicy.start`."""
        return BatchState(task, even_sizes(task))

    def decide(self, state: BatchState, observations: Sequence[Observation]) -> Decision[BatchState]:
        """As `BatchingPolicy.decide`."""
        check_observations(state, observations)
        return Decision(state)

"""When a splitting machine shows steps to its policy, and how shares fit steps of other sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpcbal.errors import PolicyError
from hpcbal.policies.batching import BatchingPolicy, BatchTask, Cadence, WorkerLimits, scale_shares
from hpcbal.policies.batching.rounding import apportion

WARM_UP_STEPS = 1
"""Training steps of a round that say nothing of speed: models are traced in them, and memory is taken."""

SETTLED_AFTER = 3
"""Decisions in a row that move few samples before a group with `Cadence.UNTIL_SETTLED` plans ahead again."""

LARGE_MOVE = 0.05
"""Share of a step's samples; a decision that moves more shows that the policy still learns. Noise of 3 % in
the times makes `fitted` move 1 or 2 % once it knows the curves."""


@dataclass(frozen=True, slots=True)
class SplitRules:
    """What a machine needs to know of its policy, and its own constants.

    Attributes:
        cadence, learns_from_any_split: as the policy declares them.
        warm_up_steps: first training steps of a round that the policy is not shown, >= 0.
        settled_after, large_move: see `SETTLED_AFTER` and `LARGE_MOVE`.

    Raises:
        PolicyError: the policy never decides, so there is nothing for a machine to do.
    """

    cadence: Cadence
    learns_from_any_split: bool = False
    warm_up_steps: int = WARM_UP_STEPS
    settled_after: int = SETTLED_AFTER
    large_move: float = LARGE_MOVE

    def __post_init__(self) -> None:
        if self.cadence is Cadence.NEVER:
            raise PolicyError("a policy that never decides needs no splitting machine; use its first split")

    @classmethod
    def of(cls, policy: BatchingPolicy[Any]) -> SplitRules:
        """The rules for this policy."""
        return cls(policy.cadence, policy.learns_from_any_split)


def step_task(num_samples: int, num_ranks: int, max_samples: int | None = None) -> BatchTask:
    """A full step; every rank gets a sample where there are enough, so that all are still measured.

    Args:
        max_samples: most samples of one rank; an even share is always allowed. None: no limit.
    """
    if max_samples is not None:
        max_samples = max(max_samples, -(-num_samples // num_ranks))
    limits = WorkerLimits(min_samples=int(num_samples >= num_ranks), max_samples=max_samples)
    return BatchTask.uniform(num_samples, num_ranks, limits)


def scaled_to_step(num_samples: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """`sizes` for a step of another number of samples; one of validation may hold more than a full one."""
    total = sum(sizes)
    if num_samples == total:
        return tuple(sizes)
    return scale_shares(num_samples, sizes) if num_samples < total else apportion(num_samples, sizes)

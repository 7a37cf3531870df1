"""Rules of a splitting machine: which steps its policy sees, and how shares fit steps of other sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpcbal.errors import PolicyError
from hpcbal.policies.batching import BatchingPolicy, BatchTask, Cadence, WorkerLimits, scale_shares
from hpcbal.policies.batching.rounding import apportion

WARM_UP_STEPS = 1
"""Training steps at the start of a round in which models are traced and memory is allocated. Their times
say nothing about speed."""

SETTLED_AFTER = 3
"""Decisions in a row that must move few samples until a group with `Cadence.UNTIL_SETTLED` plans ahead."""

LARGE_MOVE = 0.05
"""Share of a step's samples. If a decision moves more, the policy is still learning. With noise of 3 % in the
times, `fitted` moves 1 or 2 % once it knows the curves."""


@dataclass(frozen=True, slots=True)
class SplitRules:
    """What a machine needs to know about its policy, and its constants.

    Attributes:
        cadence, learns_from_any_split: declared by the policy.
        warm_up_steps: first training steps of a round that the policy does not see, >= 0.
        settled_after, large_move: see `SETTLED_AFTER` and `LARGE_MOVE`.

    Raises:
        PolicyError: the policy never decides, so it needs no machine.
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
        """The rules for a policy."""
        return cls(policy.cadence, policy.learns_from_any_split)


def step_task(num_samples: int, num_ranks: int, max_samples: int | None = None) -> BatchTask:
    """The task of a full step; every rank gets a sample if there are enough, so all ranks stay measured.

    Args:
        max_samples: most samples of one rank; an even share is always allowed. None: no limit.
    """
    if max_samples is not None:
        max_samples = max(max_samples, -(-num_samples // num_ranks))
    limits = WorkerLimits(min_samples=int(num_samples >= num_ranks), max_samples=max_samples)
    return BatchTask.uniform(num_samples, num_ranks, limits)


def scaled_to_step(num_samples: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """`sizes` scaled to a step of `num_samples`; a step of validation may be larger than a full step."""
    total = sum(sizes)
    if num_samples == total:
        return tuple(sizes)
    return scale_shares(num_samples, sizes) if num_samples < total else apportion(num_samples, sizes)

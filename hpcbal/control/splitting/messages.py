"""The events that a group's splitting machine takes, and the actions that it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpcbal.policies.batching import Decision, Observation


@dataclass(frozen=True, slots=True)
class Announcement:
    """The master's announcement to all ranks of its group; all follow it from the same step on.

    Attributes:
        batch_sizes: samples of each rank in a full step.
        at_once: whether each step now waits for the decision on the step before. Otherwise a batch may be
            planned and fetched while the step before it runs.
        weights: the part of a step's work that each rank gets where samples differ in size; only their
            proportions count. Empty: `batch_sizes`.
    """

    batch_sizes: tuple[int, ...]
    at_once: bool
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.weights:
            object.__setattr__(self, "weights", tuple(map(float, self.batch_sizes)))


# ---- events: what has happened -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SplitEvent:
    """Base of all events."""


@dataclass(frozen=True, slots=True)
class StepMeasured(SplitEvent):
    """On the master: all ranks have reported on a training step.

    Attributes:
        shares: samples of each rank in that step, as planned.
        observations: one per rank, in rank order.
    """

    shares: tuple[int, ...]
    observations: tuple[Observation, ...]


@dataclass(frozen=True, slots=True)
class Decided(SplitEvent):
    """On the master: the policy has answered the last `AskPolicy`."""

    decision: Decision[Any]


@dataclass(frozen=True, slots=True)
class PolicyFailed(SplitEvent):
    """On the master: the policy raised an error instead of answering, or cannot be shown a step's reports.

    `problem` goes to the log.
    """

    problem: str


@dataclass(frozen=True, slots=True)
class Announced(SplitEvent):
    """On every rank: the master's announcement, identical on all ranks after the same step."""

    announcement: Announcement


# ---- actions: what to do -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SplitAction:
    """Base of all actions."""


@dataclass(frozen=True, slots=True)
class AskPolicy(SplitAction):
    """Ask the policy, and report back with `Decided` or `PolicyFailed`.

    Attributes:
        state, observations: arguments of `BatchingPolicy.decide`.
    """

    state: Any
    observations: tuple[Observation, ...]


@dataclass(frozen=True, slots=True)
class Offer(SplitAction):
    """Log that the group would be faster without this rank; once for each rank."""

    rank: int


@dataclass(frozen=True, slots=True)
class GiveUp(SplitAction):
    """Log that balancing ends: the policy is no longer asked, and the shares stay as they are."""

    problem: str

"""What goes into a group's splitting machine (events) and what comes out (actions)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpcbal.policies.batching import Decision, Observation


@dataclass(frozen=True, slots=True)
class Announcement:
    """What the master announces to all ranks of its group; they follow it from the same step on.

    Attributes:
        batch_sizes: samples of each rank in a full step.
        at_once: whether each step now waits for the decision about the step before. Otherwise a batch may be
            planned, and fetched, while the step before it runs.
    """

    batch_sizes: tuple[int, ...]
    at_once: bool


# ---- events: what has happened -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SplitEvent:
    """Base of all events."""


@dataclass(frozen=True, slots=True)
class StepMeasured(SplitEvent):
    """On the master: the reports of all ranks about a training step are there.

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
    """On the master: the policy raised an error instead of answering; `problem` is for people."""

    problem: str


@dataclass(frozen=True, slots=True)
class Announced(SplitEvent):
    """On every rank: the announcement of the master, the same on all of them after the same step."""

    announcement: Announcement


# ---- actions: what to do -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SplitAction:
    """Base of all actions."""


@dataclass(frozen=True, slots=True)
class AskPolicy(SplitAction):
    """Ask the policy, and answer with `Decided` or `PolicyFailed`.

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
    """Log that balancing ends: the policy is asked no more, and the shares stay as they are."""

    problem: str

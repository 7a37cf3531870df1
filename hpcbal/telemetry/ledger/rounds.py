"""Lines about rounds: who trains where, from when to when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from hpcbal.telemetry.ledger.line import Facts, Line
from hpcbal.values import Position


@dataclass(frozen=True, slots=True)
class GroupFacts(Facts):
    """A trainer group.

    Attributes:
        dnn: what it trains.
        gpus: its GPU slots in the cluster's numbering; the first one is the master's.
    """

    dnn: str
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlanFacts(Facts):
    """The plan of a round.

    Attributes:
        index: rounds count from 0 over all starts.
        groups: who trains where.
        first_pass: pass of the shared stream with which the round begins.
        start: by DNN, the position at which it begins.
        epochs: by DNN, epochs completed before this round.
        num_preprocessors: preprocessor ranks that make blocks.
        predicted_rate_samples_per_s: by DNN, as far as rates are known.
        num_gpus: GPUs of the flotilla when it was formed; 0: those of `groups`.
        last_pass: all groups leave after this pass; null: the round ends by its rule.

    Raises:
        ValueError: a DNN of `groups` is missing from `start` or `epochs`.
    """

    index: int
    groups: tuple[GroupFacts, ...]
    first_pass: int
    start: Mapping[str, Position]
    epochs: Mapping[str, int]
    num_preprocessors: int
    predicted_rate_samples_per_s: Mapping[str, float]
    num_gpus: int
    last_pass: int | None

    def __post_init__(self) -> None:
        for group in self.groups:
            for name, known in (("start", self.start), ("epochs", self.epochs)):
                if group.dnn not in known:
                    raise ValueError(f"{name} lacks {group.dnn!r}, which is in groups")

    @property
    def gpus_of_dnn(self) -> Mapping[str, tuple[int, ...]]:
        """GPU slots by DNN."""
        return {group.dnn: group.gpus for group in self.groups}


@dataclass(frozen=True, slots=True)
class ProfilingStartedLine(Line):
    """Written before a wave of groups is timed.

    Attributes:
        groups: those that are timed at the same time.
    """

    event: ClassVar[str] = "profiling-started"
    groups: tuple[GroupFacts, ...]


@dataclass(frozen=True, slots=True)
class RoundStartedLine(Line):
    """Written before the groups of a round are formed.

    Attributes:
        plan: of the round.
    """

    event: ClassVar[str] = "round-started"
    plan: PlanFacts


@dataclass(frozen=True, slots=True)
class StartedAloneLine(Line):
    """Written before a DNN starts on one GPU with a stream of its own, outside of rounds.

    Attributes:
        plan: one group.
    """

    event: ClassVar[str] = "started-alone"
    plan: PlanFacts


@dataclass(frozen=True, slots=True)
class PassStartedLine(Line):
    """Written when groups continue with another pass; the first pass of a round has no such line.

    Attributes:
        pass_index: of the shared stream.
        dnns: whose groups continue.
    """

    event: ClassVar[str] = "pass-started"
    pass_index: int
    dnns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LeaveRoundLine(Line):
    """Written when a group is asked to leave the round after a whole pass.

    Attributes:
        dnn: whose group.
        reason: `converged` or `regroup`.
        detail: which rule, or which GPU a group drops; for people.
    """

    event: ClassVar[str] = "leave-round"
    dnn: str
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class GpuLeftOutLine(Line):
    """Written when a DNN drops a GPU for as long as the hosts stay the same.

    Attributes:
        dnn: which one continues without it.
        gpu: the slot.
    """

    event: ClassVar[str] = "gpu-left-out"
    dnn: str
    gpu: int


@dataclass(frozen=True, slots=True)
class GroupLeftLine(Line):
    """Written when a group has left its GPUs, after training, profiling, a stop or a failure.

    Attributes:
        dnn: whose group.
        wall_time_s: how long it held its GPUs.
        slot_seconds: that time multiplied by its number of GPUs.
    """

    event: ClassVar[str] = "group-left"
    dnn: str
    wall_time_s: float
    slot_seconds: float


@dataclass(frozen=True, slots=True)
class RoundEndedLine(Line):
    """Written when all groups of a round have left.

    Attributes:
        index: of the round.
        suspended: whether it was stopped on request; the next start continues it.
        continues: whether the next round is this one without some GPUs.
    """

    event: ClassVar[str] = "round-ended"
    index: int
    suspended: bool
    continues: bool

"""Lines about rounds: which DNN trains on which slots, and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from hpcbal.telemetry.ledger.line import Facts, Line, Number
from hpcbal.values import Position


@dataclass(frozen=True, slots=True)
class GroupFacts(Facts):
    """A trainer group.

    Attributes:
        dnn: the DNN that it trains.
        gpus: its slots, numbered over the cluster; the first one is the master's.
    """

    dnn: str
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlanFacts(Facts):
    """The plan of a round.

    Attributes:
        index: index of the round, counted from 0 over all starts.
        groups: the trainer groups.
        first_pass: first pass of the shared stream in this round.
        start: start position of each DNN.
        epochs: number of epochs that each DNN completed before this round.
        num_preprocessors: number of preprocessor ranks that make blocks.
        predicted_rate_samples_per_s: predicted rate of each DNN, if known.
        num_gpus: number of slots of the flotilla when it was formed; 0 means those of `groups`.
        last_pass: all groups leave after this pass; null if the round ends by its rule.

    Raises:
        ValueError: if a DNN of `groups` is missing from `start` or `epochs`.
    """

    index: int
    groups: tuple[GroupFacts, ...]
    first_pass: int
    start: Mapping[str, Position]
    epochs: Mapping[str, int]
    num_preprocessors: int
    predicted_rate_samples_per_s: Mapping[str, Number]
    num_gpus: int
    last_pass: int | None

    def __post_init__(self) -> None:
        for group in self.groups:
            for name, known in (("start", self.start), ("epochs", self.epochs)):
                if group.dnn not in known:
                    raise ValueError(f"{name} lacks {group.dnn!r}, which is in groups")

    @property
    def gpus_of_dnn(self) -> Mapping[str, tuple[int, ...]]:
        """Slots by DNN."""
        return {group.dnn: group.gpus for group in self.groups}


@dataclass(frozen=True, slots=True)
class ProfilingStartedLine(Line):
    """Written before a wave of groups is timed.

    Attributes:
        groups: the groups that are timed at the same time.
    """

    event: ClassVar[str] = "profiling-started"
    groups: tuple[GroupFacts, ...]


@dataclass(frozen=True, slots=True)
class RoundStartedLine(Line):
    """Written before the groups of a round are formed.

    Attributes:
        plan: the plan of the round.
    """

    event: ClassVar[str] = "round-started"
    plan: PlanFacts


@dataclass(frozen=True, slots=True)
class StartedAloneLine(Line):
    """Written before a DNN starts on one slot with its own stream, outside of rounds.

    Attributes:
        plan: a plan with one group.
    """

    event: ClassVar[str] = "started-alone"
    plan: PlanFacts


@dataclass(frozen=True, slots=True)
class PassStartedLine(Line):
    """Written when groups continue with another pass; the first pass of a round has no such line.

    Attributes:
        pass_index: pass of the shared stream.
        dnns: the DNNs whose groups continue.
    """

    event: ClassVar[str] = "pass-started"
    pass_index: int
    dnns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LeaveRoundLine(Line):
    """Written when a group is asked to leave the round after a whole pass.

    Attributes:
        dnn: the DNN of the group.
        reason: `converged`; `paused` until other DNNs have results, or `pruned`, see `prune`; or `regroup`.
        detail: the rule that applied, or the slot that the group drops; text for users.
    """

    event: ClassVar[str] = "leave-round"
    dnn: str
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class GpuLeftOutLine(Line):
    """Written when a DNN drops a slot for as long as the hosts stay the same.

    Attributes:
        dnn: the DNN that continues without the slot.
        gpu: the slot.
    """

    event: ClassVar[str] = "gpu-left-out"
    dnn: str
    gpu: int


@dataclass(frozen=True, slots=True)
class GroupLeftLine(Line):
    """Written when a group has left its slots, after training, profiling, a stop or a failure.

    Attributes:
        dnn: the DNN of the group.
        wall_time_s: time for which it held its slots.
        slot_seconds: that time multiplied by its number of slots.
    """

    event: ClassVar[str] = "group-left"
    dnn: str
    wall_time_s: Number
    slot_seconds: Number


@dataclass(frozen=True, slots=True)
class RoundEndedLine(Line):
    """Written when all groups of a round have left.

    Attributes:
        index: index of the round.
        suspended: whether it was stopped on request; the next start resumes it.
        continues: whether the next round continues this one without some slots.
    """

    event: ClassVar[str] = "round-ended"
    index: int
    suspended: bool
    continues: bool

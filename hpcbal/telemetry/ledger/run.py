"""Lines about a start of a run as a whole: its beginning, its end, its prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from hpcbal.events.line import Facts, Line, Number

RunKind = Literal["ensemble", "paramserver", "jobs"]
"""The kinds of runs that a directory can hold."""

Outcome = Literal["done", "failed-dnns", "failed", "suspended", "profiled"]
"""How a start can end, unless it is killed."""


@dataclass(frozen=True, slots=True)
class NodeFacts(Facts):
    """A node of the allocation.

    Attributes:
        host: its host name.
        num_slots: slots on it.
    """

    host: str
    num_slots: int


@dataclass(frozen=True, slots=True)
class RunStartedLine(Line):
    """The first line of every start, resumes included.

    Attributes:
        kind: kind of the run, as its config names it.
        name: name of the run, from the config.
        resumed: whether the directory held this run before.
        nodes: nodes of the allocation; slots are numbered over them in this order.
        num_ranks: number of MPI ranks.
        device: device that the trainers compute on.
        seed: seed, from the config.
        paradigm: `schedule.paradigm`; null for other kinds.
        regroup: `balance.regroup`: whether groups may drop a slot; false for other kinds.
        versions: versions of hpcbal, Python and libraries, by name.
        opening_s: seconds from the command to this line.
        has_changed: whether the config differs from that of the start before.
        computed_by: backend of an ensemble; `emulated` or `real` for other kinds; empty in older ledgers.
        expected_startup_s: seconds from the command to the first work of the ranks, as `hpcbal plan` takes
            them from earlier runs; null in older ledgers.
    """

    event: ClassVar[str] = "run-started"
    kind: RunKind
    name: str
    resumed: bool
    nodes: tuple[NodeFacts, ...]
    num_ranks: int
    device: str
    seed: int
    paradigm: str | None
    regroup: bool
    versions: Mapping[str, str]
    opening_s: Number = 0.0
    has_changed: bool = False
    computed_by: str = ""
    expected_startup_s: float | None = None


@dataclass(frozen=True, slots=True)
class PredictionLine(Line):
    """Written once per start, when its first prediction arrives.

    Attributes:
        wall_time_s: predicted duration of this start, from beginning to end.
        remaining_s: predicted time left when the prediction was made.
        busy: share of the slots' time, 0..1, that they were predicted to train in the time left.
    """

    event: ClassVar[str] = "prediction"
    wall_time_s: Number
    remaining_s: Number
    busy: float | None = None


@dataclass(frozen=True, slots=True)
class WholeRun(Facts):
    """The time and use of a run over all its starts, beside what was predicted at its first one.

    Attributes:
        predicted_s: predicted seconds from the first work of the ranks to the end, if no job stops early;
            null if there was no prediction, or a later start had another config or other slots.
        predicted_busy: predicted share of the slots' time, 0..1, in which they train; null likewise.
        startup_s: seconds from the command to the first work of the ranks, in the first start.
        active_s: seconds from the command to the end, over all starts, without queues between them.
        busy: share of the slots' time in `active_s`, 0..1, in which they trained.
        busy_by_slot: the same of each slot; of machines, the share in which they computed.
        num_starts: number of starts.
        checkpoint_s: duration of the slowest write of a checkpoint.
        device_busy: share of the slots' time in `active_s`, 0..1, in which GPUs ran kernels, as their library
            tells it; null where none does.
        expected_startup_s: seconds that the first start was expected to take until the first work of its
            ranks, when it began; null in older ledgers.
    """

    predicted_s: float | None
    predicted_busy: float | None
    startup_s: float
    active_s: float
    busy: float
    busy_by_slot: tuple[float, ...]
    num_starts: int
    checkpoint_s: float
    device_busy: float | None = None
    expected_startup_s: float | None = None

    @property
    def expected_s(self) -> float | None:
        """Return the predicted time from the command to the end, of which nothing was measured at the end."""
        if self.predicted_s is None or self.expected_startup_s is None:
            return None
        return self.expected_startup_s + self.predicted_s

    @property
    def expected_busy(self) -> float | None:
        """Return the predicted share of the slots' time, 0..1, of a time that includes the start."""
        if self.predicted_s is None or self.predicted_busy is None or not self.expected_s:
            return None
        return self.predicted_busy * self.predicted_s / self.expected_s


@dataclass(frozen=True, slots=True)
class RunFinishedLine(Line):
    """The last line of a start that was not killed.

    Attributes:
        outcome: how the start ended.
        exit_code: exit code of the start.
        decided_s: time that the state machine spent on decisions.
        num_preprocessed: number of samples that preprocessors made in this start.
        preprocessing_s: busy time of all preprocessors.
        num_from_cache: how many of these samples were in a cache of decoded samples.
        num_fetched: how many of those were in the cache of another node.
        predicted_s: predicted duration of this start; null if there was no prediction or the run is not over.
        actual_s: measured duration of this start; null if `predicted_s` is null.
        whole: what the run took over all its starts; null if it is not over.
    """

    event: ClassVar[str] = "run-finished"
    outcome: Outcome
    exit_code: int
    decided_s: Number
    num_preprocessed: int
    preprocessing_s: Number
    num_from_cache: int = 0
    num_fetched: int = 0
    predicted_s: float | None = None
    actual_s: float | None = None
    whole: WholeRun | None = None

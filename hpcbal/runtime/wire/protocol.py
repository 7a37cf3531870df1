"""Messages between the ranks: small frozen values, pickled; arrays never travel this way."""

from __future__ import annotations

from dataclasses import dataclass

from hpcbal.comm.message import Message
from hpcbal.control.messages import Event, GroupPlan, RoundPlan
from hpcbal.dataplane.stream import StreamPlan
from hpcbal.telemetry.ledger import EpochFacts
from hpcbal.telemetry.streams.slices import Slice

# ---- scheduler -> trainers -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenGroups(Message):
    """Scheduler -> every trainer: close the groups of before, form these, get ready to read.

    Attributes:
        serial: counts the times that groups were formed; answers and later orders carry it.
        groups: who trains what; trainers that are in none stay idle but take part in forming the groups.
        stream: the stream that the groups will read; producers start when all trainers are ready.
        round_plan: None for a wave of profiling.
    """

    serial: int
    groups: tuple[GroupPlan, ...]
    stream: StreamPlan
    round_plan: RoundPlan | None


@dataclass(frozen=True, slots=True)
class TrainAlone(Message):
    """Scheduler -> one trainer: train the DNN of `round_plan` with a stream of this rank's own."""

    serial: int
    round_plan: RoundPlan


@dataclass(frozen=True, slots=True)
class Proceed(Message):
    """Scheduler -> all ranks of a group that waits at the end of a pass: train `pass_index` next."""

    serial: int
    pass_index: int
    checkpoint: bool


@dataclass(frozen=True, slots=True)
class Leave(Message):
    """Scheduler -> all ranks of a group that waits at the end of a pass: checkpoint and go idle."""

    serial: int
    reason: str


@dataclass(frozen=True, slots=True)
class Suspend(Message):
    """Scheduler -> all ranks of a group: stop at the next step, checkpoint there and go idle."""

    serial: int


@dataclass(frozen=True, slots=True)
class Shutdown(Message):
    """Scheduler -> every rank: the run is over; leave with `exit_code`."""

    exit_code: int


# ---- scheduler -> preprocessors --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartStream(Message):
    """Scheduler -> every preprocessor: make (or only receive) the blocks of `plan`."""

    plan: StreamPlan


@dataclass(frozen=True, slots=True)
class EndStream(Message):
    """Scheduler -> every preprocessor: end the stream of `generation`."""

    generation: int


# ---- to the scheduler ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReaderReady(Message):
    """Trainer -> scheduler: my cursor is set for the stream of `serial` (or I read nothing of it)."""

    serial: int


@dataclass(frozen=True, slots=True)
class StreamEnded(Message):
    """Preprocessor -> scheduler: nothing of `generation` is under way any more."""

    generation: int


@dataclass(frozen=True, slots=True)
class PreprocessorReport(Message):
    """Preprocessor -> scheduler, every second while it works: counts since the start of the run.

    A trainer with a stream of its own sends it at the end of each pass.

    Attributes:
        samples_made: samples preprocessed.
        busy_s: time spent on them.
        bad: (sample id, where, reason) of broken samples since the last report.
    """

    samples_made: int
    busy_s: float
    bad: tuple[tuple[int, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ProfileFacts:
    """A profiled group took `start_s` from its beginning to its first step."""

    start_s: float


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """A checkpoint took `seconds` to write and kept its group from training for `held_s`."""

    seconds: float
    held_s: float


@dataclass(frozen=True, slots=True)
class Happened(Message):
    """Trainer-group master -> scheduler: an event for the state machine, of the groups of `serial`.

    `facts` are measurements that no decision depends on: a RateMeasured, CheckpointWritten or EpochDone comes
    with ProfileFacts, CheckpointFacts or EpochFacts, other events with none.
    """

    serial: int
    event: Event
    facts: ProfileFacts | CheckpointFacts | EpochFacts | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat(Message):
    """Any rank -> scheduler, every few seconds: alive, and what it does."""

    doing: str


@dataclass(frozen=True, slots=True)
class DataLoading(Message):
    """Trainer-group master -> scheduler: data is read before training begins, which may take long.

    Attributes:
        dnn_id: for which DNN.
        what: for people.
    """

    dnn_id: str
    what: str


@dataclass(frozen=True, slots=True)
class TimelinePart(Message):
    """Any rank -> scheduler, every few seconds: what it has done since the last part."""

    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class StopRequest(Message):
    """Any rank -> scheduler: this rank got a signal that asks for a clean stop."""

    reason: str

"""Messages between the ranks: small frozen values that are pickled; arrays are never sent this way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcbal.comm.channel import Message

if TYPE_CHECKING:
    from hpcbal.config import DnnConfig
    from hpcbal.dataplane.stream import StreamPlan
    from hpcbal.events.ensemble import Event, GroupPlan, RoundPlan
    from hpcbal.telemetry.ledger.dnn_lines import BestKeptLine, InitialWeightsLine, ModelWarningLine
    from hpcbal.telemetry.streams.slices import Slice

# ---- scheduler -> trainers -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Joined:
    """A DNN that has joined since this start began, so that the ranks' configuration lacks it.

    Attributes:
        dnn: its configuration.
        import_roots: directories with its modules.
        rates: its emulated rates, samples/s by number of slots; empty if it is trained on real devices.
        drawn: the values that a search has proposed for it, as text; None if the user has added it.
    """

    dnn: DnnConfig
    import_roots: tuple[str, ...]
    rates: Mapping[int, float]
    drawn: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class OpenGroups(Message):
    """Scheduler -> every trainer: close the previous groups, form these, get ready to read.

    Attributes:
        serial: counts how often groups were formed; replies and later orders carry it.
        groups: which slots train which DNN; trainers without a group stay idle but take part in forming them.
        stream: the stream that the groups will read; producers start when all trainers are ready.
        round_plan: the plan of the round; None for a profiling wave.
        joined: those of the DNNs that have joined since this start began.
    """

    serial: int
    groups: tuple[GroupPlan, ...]
    stream: StreamPlan
    round_plan: RoundPlan | None
    joined: tuple[Joined, ...] = ()


@dataclass(frozen=True, slots=True)
class FormGroup(Message):
    """Scheduler -> trainers of one group: train the DNN of `round_plan` in batches that you make.

    `joined` holds it if it has joined since this start began.
    """

    serial: int
    round_plan: RoundPlan
    joined: tuple[Joined, ...] = ()


@dataclass(frozen=True, slots=True)
class OpenData(Message):
    """Scheduler -> all trainers: from now on there are no rounds, so open the dataset if you have not yet."""


@dataclass(frozen=True, slots=True)
class FillCache(Message):
    """Scheduler -> preprocessors: put the samples of pass `pass_index` into the cache, in their order."""

    pass_index: int


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
    """Scheduler -> every rank: the run is over; exit with `exit_code`."""

    exit_code: int


# ---- scheduler -> preprocessors --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartStream(Message):
    """Scheduler -> every preprocessor: make (or only receive) the blocks of `plan`."""

    plan: StreamPlan


@dataclass(frozen=True, slots=True)
class EndStream(Message):
    """Scheduler -> every preprocessor: end the stream of `generation`, if there is one, and fill no cache."""

    generation: int


# ---- to the scheduler ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReaderReady(Message):
    """Trainer -> scheduler: this rank is ready to read the stream of `serial`, or will not read it."""

    serial: int


@dataclass(frozen=True, slots=True)
class StreamEnded(Message):
    """Preprocessor -> scheduler: no block of `generation` is in transit any more."""

    generation: int


@dataclass(frozen=True, slots=True)
class PreprocessorReport(Message):
    """Preprocessor -> scheduler, every second while it works: totals since the start of the run.

    A trainer that makes its own samples sends it at the end of each pass.

    Attributes:
        samples_made: number of samples preprocessed.
        busy_s: seconds spent on them.
        bad: (sample id, where, reason) of broken samples since the last report.
        num_from_cache: how many of the samples were in the cache.
        warning: about the cache of the node, the first time; else empty.
        num_fetched: how many of them came from the caches of other nodes.
    """

    samples_made: int
    busy_s: float
    bad: tuple[tuple[int, str, str], ...] = ()
    num_from_cache: int = 0
    warning: str = ""
    num_fetched: int = 0


@dataclass(frozen=True, slots=True)
class Happened(Message):
    """Trainer-group master -> scheduler: an event for the state machine, from the groups of `serial`."""

    serial: int
    event: Event


@dataclass(frozen=True, slots=True)
class Noted(Message):
    """Trainer-group master -> scheduler: a line that no decision depends on.

    A warning about the model, whenever it is built; which weights a DNN starts from; which best ones are on
    disk.
    """

    line: ModelWarningLine | InitialWeightsLine | BestKeptLine


COMPILING = "compiling the module of "
"""How the heartbeat of a rank begins that is silent until `torch.compile` has made code."""

WRITING = "writing the checkpoint of "
"""How the heartbeat of a rank begins that is silent until a checkpoint is on disk."""


@dataclass(frozen=True, slots=True)
class Heartbeat(Message):
    """Any rank -> scheduler, every few seconds: the rank is alive, and what it is doing."""

    doing: str


@dataclass(frozen=True, slots=True)
class DataLoading(Message):
    """Trainer-group master -> scheduler: the group reads data before training, which may take long.

    Attributes:
        dnn_id: the DNN that the data is for.
        what: a description for the user.
    """

    dnn_id: str
    what: str


@dataclass(frozen=True, slots=True)
class TimelinePart(Message):
    """Any rank -> scheduler, every few seconds: its slices since the last part."""

    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class StopRequest(Message):
    """Any rank -> scheduler: this rank received a signal that asks for a clean stop."""

    reason: str

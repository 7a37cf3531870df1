"""What a report tells, as plain values: of a run or of a simulation, whoever has collected them.

Nothing here knows of files. Times are seconds of running: pauses between two starts of a run do not count, so
that an ensemble that waited in the queue overnight is not drawn as a night of nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

SpanKind = Literal["training", "profiling"]

USE_KINDS = ("training", "data", "peers", "checkpoint", "starting", "profiling", "idle")
"""What a slot does, in the order in which it is shown; every second of a slot is exactly one of them."""

_USE_NAMES: Mapping[str, str] = {
    "training": "training",
    "data": "waiting for data",
    "peers": "waiting for other {job}s",
    "checkpoint": "checkpointing",
    "starting": "starting groups",
    "profiling": "profiling",
    "idle": "idle",
}


def use_name(kind: str, job: str) -> str:
    """What a slot does, for people; `job` is what they call a job, such as DNN."""
    return _USE_NAMES[kind].format(job=job)


@dataclass(frozen=True, slots=True)
class EpochPoint:
    """One epoch of a learning curve.

    Attributes:
        epoch: counts from 1.
        metrics: as the run wrote them; None stands for NaN.
    """

    epoch: int
    metrics: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class JobReport:
    """What became of one job, such as a DNN; `cause` and `detail` are empty unless it has failed.

    `best` is its best value; of which metric, the kind of run says.
    """

    name: str
    state: str
    epochs: int
    best: float | None = None
    wall_time_s: float = 0.0
    slot_seconds: float = 0.0
    cause: str = ""
    detail: str = ""
    curve: tuple[EpochPoint, ...] = ()


@dataclass(frozen=True, slots=True)
class SlotSpan:
    """A job holds a slot from `start_s` to `end_s`."""

    gpu: int
    job: str
    start_s: float
    end_s: float
    kind: SpanKind = "training"


@dataclass(frozen=True, slots=True)
class RoundReport:
    """One round; `stream_samples_per_s` is what its passes asked of the preprocessors, None if unknown."""

    index: int
    start_s: float
    end_s: float
    num_jobs: int
    num_preprocessors: int = 0
    stream_samples_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class SlotUse:
    """Seconds of one slot by what it did; keys are USE_KINDS, missing ones are 0."""

    gpu: int
    seconds: Mapping[str, float]

    def share(self, kind: str) -> float:
        """Part of the slot's time, 0..1."""
        total = sum(self.seconds.values())
        return self.seconds.get(kind, 0.0) / total if total else 0.0


@dataclass(frozen=True, slots=True)
class RateComparison:
    """Samples per second of one job on `num_gpus` slots.

    Attributes:
        planned: what the schedule reckoned with; None if it reckoned with nothing.
        measured: of the training steps, waiting for data left out; mean over the epochs.
    """

    job: str
    num_gpus: int
    planned: float | None
    measured: float


@dataclass(frozen=True, slots=True)
class GroupWait:
    """What held a group up most while it trained its job in one round.

    Attributes:
        round_index: None outside of rounds.
        num_gpus: of the group, >= 2.
        gpu: the slot that came last; None where summing the gradients took most of the time.
        why: `input`, `compute` or `collective`.
        late_s: how much later it came than the mean of the others, in seconds of all its late epochs; with
            `collective` what the sums took.
        share: `late_s` over the time of the training steps, 0..1.
        num_late, num_epochs: epochs in which it was late, of so many.
    """

    job: str
    round_index: int | None
    num_gpus: int
    gpu: int | None
    why: str
    late_s: float
    share: float
    num_late: int
    num_epochs: int


@dataclass(frozen=True, slots=True)
class SharePoint:
    """What each slot of a balanced group gets of a step, 0..1, at the end of an epoch (from 1)."""

    epoch: int
    by_gpu: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A job continues without a slot; decided `at_s` on the time axis."""

    job: str
    gpu: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Overhead:
    """A cost that is not training: `share` of all slot time, 0..1, and a note on what is in it."""

    name: str
    share: float
    note: str


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """The shared stream; `samples_per_s` is what one preprocessor makes in a second of work."""

    samples_per_s: float | None = None
    num_bad_samples: int = 0


@dataclass(frozen=True, slots=True)
class PredictedDuration:
    """Seconds for the whole run.

    Attributes:
        predicted_s: if every job needs its max_epochs.
        actual_s: what it took; None until the end.
    """

    predicted_s: float
    actual_s: float | None = None


@dataclass(frozen=True, slots=True)
class ReportData:
    """Everything that the page and the plots show.

    Attributes:
        name: of the run.
        kind: `run` or `simulation`.
        state: in a word: done, failed jobs, stopped, interrupted, running, profiled.
        note: a sentence on the state, empty if there is nothing to add.
        started_at: UTC text of the first start, empty for a simulation.
        duration_s: of all starts together: the length of the time axis.
        slot_names: one per slot, like `node3 GPU 1`.
        start_s: where each start of the run begins on the time axis; the first is 0.
        waits: of groups that somebody held up, the costliest first.
        shares: by job, of those whose steps were balanced.
        facts: (name, value) of environment and versions, in the order of showing.
        run_kind: kind of the run, as its config names it.
    """

    name: str
    kind: Literal["run", "simulation"]
    state: str
    duration_s: float
    slot_names: tuple[str, ...]
    note: str = ""
    started_at: str = ""
    start_s: tuple[float, ...] = (0.0,)
    jobs: tuple[JobReport, ...] = ()
    rounds: tuple[RoundReport, ...] = ()
    spans: tuple[SlotSpan, ...] = ()
    use: tuple[SlotUse, ...] = ()
    rates: tuple[RateComparison, ...] = ()
    waits: tuple[GroupWait, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    shares: Mapping[str, tuple[SharePoint, ...]] = field(default_factory=dict)
    overheads: tuple[Overhead, ...] = ()
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    prediction: PredictedDuration | None = None
    facts: tuple[tuple[str, str], ...] = ()
    run_kind: str = "ensemble"

    @property
    def num_slots(self) -> int:
        return len(self.slot_names)

    @property
    def failed(self) -> tuple[JobReport, ...]:
        """The jobs that have failed, in the order of the config."""
        return tuple(job for job in self.jobs if job.state == "failed")

    def use_share(self, kind: str) -> float:
        """Part of all slot time that went into `kind`, 0..1."""
        total = sum(sum(use.seconds.values()) for use in self.use)
        return sum(use.seconds.get(kind, 0.0) for use in self.use) / total if total else 0.0

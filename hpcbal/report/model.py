"""The values of a report, about a run or a simulation.

This module does not read files. Times are seconds of running: pauses between two starts of a run do not
count, so a night in the queue is not drawn as idle time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hpcbal.kinds import DEFAULT_KIND, KINDS, Kind
from hpcbal.telemetry.ledger.run import WholeRun
from hpcbal.telemetry.views.evaluation import Evaluation
from hpcbal.telemetry.views.kinds import Measure, measure_in

SpanKind = Literal["training", "profiling"]

USE_KINDS = ("training", "data", "peers", "checkpoint", "starting", "profiling", "idle")
"""Kinds of use of a slot, in display order; every second of a slot has exactly one kind.

`Kind.uses` has the name of each for users.
"""


@dataclass(frozen=True, slots=True)
class EpochPoint:
    """One epoch of a learning curve.

    Attributes:
        epoch: number of the epoch, from 1.
        metrics: the metrics that the run wrote; None stands for NaN.
    """

    epoch: int
    metrics: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class JobReport:
    """The result of one job, such as a DNN; `cause` and `detail` are empty unless it has failed.

    Attributes:
        best: its best value of the measure of the report.
        final: the value of that measure after its last epoch.
        best_epoch: the epoch (from 1) with the best value; None if there is none.
        best_loss, final_loss: its lowest loss and that of its last epoch, of the validation samples if there
            are any.
        settings: hyper-parameters in which it differs from other jobs of the run, by dotted key, as text.
        kept_best_epoch, kept_best_metric, kept_best_value: the best epoch by its stop rule, whose weights are
            on disk; None if they are not.
        kept_last_epoch: the last epoch whose weights are on disk; None if there is none.
        max_epochs: after how many epochs it ends at the latest; None if that is not known.
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
    final: float | None = None
    best_epoch: int | None = None
    best_loss: float | None = None
    final_loss: float | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    kept_best_epoch: int | None = None
    kept_best_metric: str = ""
    kept_best_value: float | None = None
    kept_last_epoch: int | None = None
    max_epochs: int | None = None


@dataclass(frozen=True, slots=True)
class SlotSpan:
    """A job holds a slot from `start_s` to `end_s`; `role` is what an executor does for it."""

    slot: int
    job: str
    start_s: float
    end_s: float
    kind: SpanKind = "training"
    role: str = ""


@dataclass(frozen=True, slots=True)
class RoundReport:
    """One round; `stream_samples_per_s` is the rate of its stream, None if unknown."""

    index: int
    start_s: float
    end_s: float
    num_jobs: int
    num_preprocessors: int = 0
    stream_samples_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class SlotUse:
    """Seconds of one slot by kind of use; keys are USE_KINDS, missing keys mean 0."""

    slot: int
    seconds: Mapping[str, float]

    def share(self, kind: str) -> float:
        """The fraction of the slot's time, 0..1."""
        total = sum(self.seconds.values())
        return self.seconds.get(kind, 0.0) / total if total else 0.0


@dataclass(frozen=True, slots=True)
class RateComparison:
    """Samples per second of one job on `num_slots` slots.

    Attributes:
        planned: the rate that the schedule assumed, or that was forecast of a job on parameter servers; None
            if there is neither.
        measured: the rate of the training steps, without waiting for data; mean over the epochs except the
            first one of each stay on slots, which builds the network. Of a job on parameter servers all of
            its epochs' time counts, with objectives. None if there are only first epochs.
    """

    job: str
    num_slots: int
    planned: float | None
    measured: float | None


@dataclass(frozen=True, slots=True)
class GroupWait:
    """The main wait of a group while it trained its job in one round.

    Attributes:
        round_index: index of the round; None outside of rounds.
        num_slots: number of slots in the group, >= 2.
        slot: the slot that came last; None if the all-reduce took most of the time.
        why: `input`, `compute` or `collective`.
        late_s: how much later it came than the mean of the others, summed over all its late epochs, in
            seconds; with `collective`, the time of the all-reduce.
        share: `late_s` divided by the time of the training steps, 0..1.
        num_late, num_epochs: number of epochs in which it was late, and number of all epochs.
    """

    job: str
    round_index: int | None
    num_slots: int
    slot: int | None
    why: str
    late_s: float
    share: float
    num_late: int
    num_epochs: int


@dataclass(frozen=True, slots=True)
class WorkReport:
    """The work of a group's slots while it trained its job in one round, where samples differ in size.

    Attributes:
        round_index: index of the round; None outside of rounds.
        by_slot: work of each slot over the mean of the group, by slot, >= 2 slots.
        imbalance_left, waited: see `GroupWork`; None if it is not known.
        num_epochs: number of epochs.
    """

    job: str
    round_index: int | None
    by_slot: Mapping[int, float]
    imbalance_left: float | None
    waited: float | None
    num_epochs: int


@dataclass(frozen=True, slots=True)
class SharePoint:
    """The share, 0..1, of each slot of a group in epoch `epoch` (from 1).

    Where samples differ in size it is a share of the work of that epoch, otherwise one of the samples of a
    step at its end.
    """

    epoch: int
    by_slot: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A job continues without a slot; the decision was made at `at_s` on the time axis."""

    job: str
    slot: int
    at_s: float


@dataclass(frozen=True, slots=True)
class SharingReport:
    """Jobs that shared machines from `start_s` to `end_s` on the time axis.

    Attributes:
        jobs: names of the jobs.
        machines: ranks of the machines.
        predicted_s: predicted seconds of one iteration of all its jobs; None if a job was not profiled.
        measured_s: of its slowest job; None if there were too few iterations.
    """

    jobs: tuple[str, ...]
    machines: tuple[int, ...]
    start_s: float
    end_s: float
    predicted_s: float | None = None
    measured_s: float | None = None


@dataclass(frozen=True, slots=True)
class MachineReport:
    """How busy a machine of many jobs was.

    Attributes:
        rank: its rank.
        cpu: share of the time in which a CPU subtask ran, 0..1.
        network: share of the time in which a network subtask ran, 0..1.
        memory_bytes: the most that blocks, messages and caches of all jobs took at a time.
    """

    rank: int
    cpu: float
    network: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class MachineBusy:
    """How busy a slot of parameter-server jobs was from `start_s` to `end_s`.

    Attributes:
        slot: the slot.
        cores: share of that time in which it computed, 0..1.
        links: share of that time in which it used the network, 0..1; of a worker of a single job, bytes/s
            that it pulled and pushed.
    """

    slot: int
    start_s: float
    end_s: float
    cores: float
    links: float


@dataclass(frozen=True, slots=True)
class ModelWarning:
    """A probable mistake in the model of a job."""

    job: str
    text: str


@dataclass(frozen=True, slots=True)
class Overhead:
    """A cost besides training: its `share` of all slot time, 0..1, and a note that explains it."""

    name: str
    share: float
    note: str


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """The shared stream; `samples_per_s` is the rate of one preprocessor while it works."""

    samples_per_s: float | None = None
    num_bad_samples: int = 0


@dataclass(frozen=True, slots=True)
class PredictedDuration:
    """The predicted and the actual duration of the whole run.

    Attributes:
        predicted_s: predicted seconds, if every job trains to its max_epochs.
        actual_s: actual seconds; None until the end.
    """

    predicted_s: float
    actual_s: float | None = None


@dataclass(frozen=True, slots=True)
class ReportData:
    """Everything that the page and the plots show.

    Attributes:
        name: name of the run.
        kind: `run` or `simulation`.
        state: the state in a few words: done, failed jobs, stopped, interrupted, running, profiled.
        note: a sentence about the state; empty if there is nothing to add.
        started_at: time of the first start, UTC, as text; empty for a simulation.
        duration_s: duration of all starts together, which is the length of the time axis.
        slot_names: one name per slot, like `node3:1`.
        start_s: position of each start of the run on the time axis; the first is 0.
        waits: groups that waited for a straggler, the costliest first.
        works: work of each group whose samples differ in size, the most imbalanced first.
        warnings: probable mistakes in the models, each once.
        shares: shares of each job whose steps were balanced, or whose samples differ in size.
        facts: (name, value) pairs about the environment and versions, in display order.
        run_kind: kind of the run, as in its config.
        problem: a sentence about damaged files of the run; empty if there are none.
        measure: key of the measure by which jobs are compared; empty: the main one of that kind of run.
        evaluation: what `hpcbal evaluate` found; None if it was not called.
        sharing: groups of many parameter-server jobs, in order of their start.
        machines: use of each machine of such jobs, in the last start that has recorded it.
        busy: how busy the slots of parameter-server jobs were over time.
        waiting: parameter-server jobs that wait for machines, in order of arrival.
        whole: what the run has taken so far, from the command on; None for a simulation.
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
    works: tuple[WorkReport, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    warnings: tuple[ModelWarning, ...] = ()
    shares: Mapping[str, tuple[SharePoint, ...]] = field(default_factory=dict)
    overheads: tuple[Overhead, ...] = ()
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    prediction: PredictedDuration | None = None
    facts: tuple[tuple[str, str], ...] = ()
    run_kind: str = DEFAULT_KIND
    problem: str = ""
    measure: str = ""
    evaluation: Evaluation | None = None
    sharing: tuple[SharingReport, ...] = ()
    machines: tuple[MachineReport, ...] = ()
    busy: tuple[MachineBusy, ...] = ()
    waiting: tuple[str, ...] = ()
    whole: WholeRun | None = None

    @property
    def num_slots(self) -> int:
        return len(self.slot_names)

    @property
    def setting_keys(self) -> tuple[str, ...]:
        """The hyper-parameters in which jobs differ."""
        return tuple(dict.fromkeys(key for job in self.jobs for key in job.settings))

    @property
    def failed(self) -> tuple[JobReport, ...]:
        """The jobs that have failed, in the order of the config."""
        return tuple(job for job in self.jobs if job.state == "failed")

    @property
    def kind_of_run(self) -> Kind:
        """Return what kind of run it is of."""
        return KINDS[self.run_kind]

    @property
    def measured_by(self) -> Measure:
        """Return the measure by which its jobs are compared."""
        return measure_in(self.kind_of_run, self.measure)

    def use_share(self, kind: str) -> float:
        """The fraction of all slot time spent on `kind`, 0..1."""
        total = sum(sum(use.seconds.values()) for use in self.use)
        return sum(use.seconds.get(kind, 0.0) for use in self.use) / total if total else 0.0

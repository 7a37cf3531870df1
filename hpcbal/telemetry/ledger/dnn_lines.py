"""Lines about the training of an ensemble: rates, checkpoints, epochs, rounds, choices of schedules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from hpcbal.telemetry.ledger.line import Facts, Line, Number
from hpcbal.values import Position


@dataclass(frozen=True, slots=True)
class ScheduleFacts(Facts):
    """A schedule.

    Attributes:
        paradigm: as in `schedule.paradigm`.
        delta_samples_per_s: delta in samples/s; null if it is a share, or the paradigm has none.
        delta_share: delta as a share of the reference rate; null if it is in samples/s, or there is none.
        alpha: as in `schedule.alpha`; null if the paradigm has none.
    """

    paradigm: str
    delta_samples_per_s: float | None
    delta_share: float | None
    alpha: float | None

    def __str__(self) -> str:
        """For people: `global, delta 35%, alpha 0.8`."""
        parts = [self.paradigm]
        if self.delta_samples_per_s is not None:
            parts.append(f"delta {self.delta_samples_per_s:g} samples/s")
        if self.delta_share is not None:
            parts.append(f"delta {100.0 * self.delta_share:g}%")
        if self.alpha is not None:
            parts.append(f"alpha {self.alpha:g}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class PredictionFacts(Facts):
    """What a schedule would have led to.

    Attributes:
        schedule: the schedule.
        remaining_s: predicted time until the run ends; at least as long if `cut`.
        num_rounds: predicted number of rounds until then.
        cut: whether the prediction was given up, because another schedule is faster.
    """

    schedule: ScheduleFacts
    remaining_s: float
    num_rounds: int
    cut: bool


@dataclass(frozen=True, slots=True)
class SlotsIdleLine(Line):
    """Written when a round leaves slots idle although DNNs wait; once for each reason in a round.

    Attributes:
        round_index: index of the round.
        num_idle: number of idle slots.
        waiting: DNNs that wait for a later round.
        why: the rule that keeps them waiting; text for users.
        change: what would change it; text for users.
    """

    event: ClassVar[str] = "slots-idle"
    round_index: int
    num_idle: int
    waiting: tuple[str, ...]
    why: str
    change: str


@dataclass(frozen=True, slots=True)
class ScheduleChosenLine(Line):
    """Written when a schedule has been chosen, before the round that it forms.

    Attributes:
        schedule: the schedule until the next such line.
        predictions: what was predicted for each candidate that was tried.
        previous: the schedule before; null at the first choice of a run.
        preprocessing_samples_per_s: rate of one preprocessor that the predictions used; null if none.
        num_dnns: number of DNNs that were not over; the next choice depends on it. Null if it is not known.
        basis: identifies the DNNs, candidates, limits and nodes that the choice was made for; a resumed run
            drops a choice with another one. Null if it is not known.
    """

    event: ClassVar[str] = "schedule-chosen"
    schedule: ScheduleFacts
    predictions: tuple[PredictionFacts, ...]
    previous: ScheduleFacts | None
    preprocessing_samples_per_s: float | None
    num_dnns: int | None = None
    basis: str | None = None


@dataclass(frozen=True, slots=True)
class ModelWarningLine(Line):
    """Written once per start for each probable mistake in the model of a DNN.

    Attributes:
        dnn: the DNN.
        detail: what is wrong; text for users.
    """

    event: ClassVar[str] = "model-warning"
    dnn: str
    detail: str


@dataclass(frozen=True, slots=True)
class InitialWeightsLine(Line):
    """Written when a DNN starts from the weights of a file (`init`); a resumed DNN does not read it again.

    Attributes:
        dnn: the DNN.
        path: the file, as the configuration leads to it.
        digest: its SHA-256, hexadecimal.
        which: the epoch of another run's weights, text for users; empty for a file of Keras.
        num_layers: layers that got these weights.
    """

    event: ClassVar[str] = "initial-weights"
    dnn: str
    path: str
    digest: str
    which: str
    num_layers: int


@dataclass(frozen=True, slots=True)
class RateMeasuredLine(Line):
    """Written when a profiling run has ended, or a first pass that measures the rate.

    Attributes:
        dnn: the DNN that was timed.
        num_gpus: number of slots of its group.
        samples_per_s: the rate.
    """

    event: ClassVar[str] = "rate-measured"
    dnn: str
    num_gpus: int
    samples_per_s: Number

    def reached(self) -> tuple[str, object]:
        """Return that the rate is known."""
        return f"rate of {self.dnn} on {self.num_gpus}", True


@dataclass(frozen=True, slots=True)
class CheckpointWrittenLine(Line):
    """Written when a checkpoint is complete on disk.

    Attributes:
        dnn: the DNN.
        epoch: number of completed epochs.
        pass_index: current pass of the stream.
        offset: next sample of that pass.
        seconds: duration of the write.
        held_s: time for which the group could not train.
        only_progress: whether the weights were left out, because the DNN is done and keeps only its best.
    """

    event: ClassVar[str] = "checkpoint-written"
    dnn: str
    epoch: int
    pass_index: int
    offset: int
    seconds: Number
    held_s: Number
    only_progress: bool = False

    def reached(self) -> tuple[str, object]:
        """Return the position of the DNN."""
        return self.dnn, (self.epoch, self.offset)


@dataclass(frozen=True, slots=True)
class BestKeptLine(Line):
    """Written when the weights of a DNN's best epoch so far are complete on disk.

    Also written at a start that continues from an earlier checkpoint, if the best epoch that it has seen is
    another one.

    Attributes:
        dnn: the DNN.
        epoch: the best epoch by the DNN's stop rule; 0 if no best weights are kept any more.
        metric: `stop.monitor`.
        value: its value after that epoch; null without an epoch.
        seconds: duration of the write.
        held_s: time for which the group could not train; 0 if the checkpoint of the same epoch counts it.
    """

    event: ClassVar[str] = "best-kept"
    dnn: str
    epoch: int
    metric: str
    value: float | None
    seconds: Number
    held_s: Number


@dataclass(frozen=True, slots=True)
class CheckpointDamagedLine(Line):
    """Written at a start for each checkpoint file that cannot be used, and for a damaged ledger.

    Attributes:
        detail: the file, the problem, and what is used instead; text for users.
    """

    event: ClassVar[str] = "checkpoint-damaged"
    detail: str


@dataclass(frozen=True, slots=True)
class DnnDoneLine(Line):
    """Written when a DNN has converged and left its last round.

    Attributes:
        dnn: the DNN.
        detail: the stop rule that applied; text for users.
    """

    event: ClassVar[str] = "dnn-done"
    dnn: str
    detail: str


@dataclass(frozen=True, slots=True)
class DnnPrunedLine(Line):
    """Written when a DNN has been stopped early, because others are better, and has left its last round.

    Attributes:
        dnn: the DNN.
        detail: how it compares; text for users.
    """

    event: ClassVar[str] = "dnn-pruned"
    dnn: str
    detail: str


@dataclass(frozen=True, slots=True)
class DnnFailedLine(Line):
    """Written when a DNN cannot continue; the other DNNs continue.

    Attributes:
        dnn: the DNN.
        cause: `oom`, `nan`, `error`, `checkpoint` or `data`.
        detail: the error; text for users.
        rank: MPI rank that failed; null if unknown.
    """

    event: ClassVar[str] = "dnn-failed"
    dnn: str
    cause: str
    detail: str
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class DnnRetriedLine(Line):
    """Written at a start with `--retry-failed` for each DNN that had failed.

    Attributes:
        dnn: the DNN that gets another try.
    """

    event: ClassVar[str] = "dnn-retried"
    dnn: str


@dataclass(frozen=True, slots=True)
class RankFacts(Facts):
    """How the ranks of a group spent the training steps of an epoch: one number per rank, in rank order.

    Attributes:
        wait_s: time waiting for batches.
        compute_s: time from having a batch until arriving at the collective.
        collective_s: time in the collective, mostly waiting for slower ranks.
        samples: number of valid samples that the rank computed on.
        worked_s: time that balancing equalises: `compute_s` and the rank's own preprocessing.
        work: work of these samples, in samples of mean size; null if samples do not differ in size.
        waited_s: the part of `collective_s` spent waiting for slower ranks, beyond the shortest
            all-reduce of the epoch; null likewise.
        slowest_work: sum over the steps of the work that a rank of mean weight does while the slowest rank
            does its own; null likewise. A rank's weight is its planned part of a step's work.

    Raises:
        ValueError: if the lists differ in length or are empty.
    """

    wait_s: tuple[Number, ...]
    compute_s: tuple[Number, ...]
    collective_s: tuple[Number, ...]
    samples: tuple[int, ...]
    worked_s: tuple[Number, ...]
    work: tuple[Number, ...] | None = None
    waited_s: tuple[Number, ...] | None = None
    slowest_work: Number | None = None

    def __post_init__(self) -> None:
        rows = (self.wait_s, self.compute_s, self.collective_s, self.samples, self.worked_s)
        lengths = {len(row) for row in (*rows, self.work, self.waited_s) if row is not None}
        if lengths == {0} or len(lengths) > 1:
            raise ValueError("its lists must have one number for each rank of the group")


@dataclass(frozen=True, slots=True)
class Straggler(Facts):
    """What a group waited for in an epoch.

    Attributes:
        gpu: slot whose rank came last; null if the all-reduce itself takes most of the time.
        why: `input` (waiting for data), `compute` or `collective`.
        late_s: how much later it came than the mean of the others; with `collective`, time of the all-reduce.
    """

    gpu: int | None
    why: str
    late_s: Number


@dataclass(frozen=True, slots=True)
class BalanceFacts(Facts):
    """How the steps of an uneven group were split.

    Attributes:
        shares: samples of each rank in a full step, at the epoch's end.
        changes: number of changes of the shares in this epoch.
        decided_s: time spent on decisions.
        predictor: model that predicts speeds; null if none is used.
        fitted: whether the model has been fitted.
        fits: number of fits in this epoch.
        fit_s: time that these fits took.
        remove: group rank without which the group would be faster; null if there is none.
    """

    shares: tuple[int, ...]
    changes: int = 0
    decided_s: Number = 0.0
    predictor: str | None = None
    fitted: bool | None = None
    fits: int | None = None
    fit_s: float | None = None
    remove: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionFacts(Facts):
    """The state of partitioned data; lists have one number per rank of the group.

    Attributes:
        sizes: number of samples in each part.
        traversals: number of traversals of each part.
        gap: largest difference between traversals.
        migrations: number of migrations so far in this round.
        moved: number of samples that they moved.
    """

    sizes: tuple[int, ...]
    traversals: tuple[Number, ...]
    gap: Number
    migrations: int
    moved: int


@dataclass(frozen=True, slots=True)
class EpochFacts(Facts):
    """Measurements of the group's master; no decision depends on them.

    After a resume inside a pass, they count from the resume.

    Attributes:
        wait_s: time waiting for batches.
        num_steps: number of training and validation steps.
        num_samples: number of valid samples in these steps, over all ranks.
        num_trained: number of these samples that were in training steps.
        trained_s: time in training steps, without waiting for batches.
        ranks: measurements of each rank; null for a group of one rank.
        balance: how the steps were split; null if shares are even.
        partition: state of partitioned data; null if data is not partitioned.
        learning_rate: of the last training step; null if it does not change.
    """

    wait_s: Number
    num_steps: int
    num_samples: int
    num_trained: int
    trained_s: Number
    ranks: RankFacts | None = None
    balance: BalanceFacts | None = None
    partition: PartitionFacts | None = None
    learning_rate: Number | None = None


@dataclass(frozen=True, slots=True)
class EpochDoneLine(Line):
    """Written when a group reports the end of a pass, validation included.

    Attributes:
        dnn: the DNN.
        pass_index: pass of the shared stream.
        seconds: wall time of the epoch.
        busy_s: the part of `seconds` without waiting for data.
        metrics: `loss`, `accuracy` (or the DNN's own metrics), and each with `val_`; null for a value that is
            not finite.
        facts: further measurements.
        balancing_would_save: fraction of the time of the training steps, 0 to 1, that balancing would save;
            null if balancing is in use, and for a group of one rank.
        straggler: what the group waited for; null if there was no straggler.
    """

    event: ClassVar[str] = "epoch-done"
    dnn: str
    pass_index: int
    seconds: Number
    busy_s: Number
    metrics: Mapping[str, float | None]
    facts: EpochFacts
    balancing_would_save: float | None = None
    straggler: Straggler | None = None


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

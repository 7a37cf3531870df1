"""Events and instructions of an ensemble, and the values inside them.

The ensemble's state machine takes events and gives instructions. Those with a name in the file are lines of
the ledger as they are. Rank 0 adds to an event, before it is written, what only rank 0 knows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from hpcbal.errors import PolicyError
from hpcbal.events.history import NOTHING_MEASURED, EpochFacts, Position, Straggler
from hpcbal.events.line import Event, Facts, Instruction, Line, Number


@dataclass(frozen=True, slots=True)
class GroupPlan(Facts):
    """One DNN and the slots that train it.

    Attributes:
        dnn_id: the DNN.
        slots: its slots, numbered over the cluster; the rank of the first one is the group's master.
    """

    dnn_id: str
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RoundPlan(Facts):
    """One round of [FLEET] Alg. 1: a flotilla with its placement; or one DNN that trains alone.

    Attributes:
        index: number of the round, counted from 0 over the life of the ensemble, resumes included.
        groups: the flotilla; no slot occurs twice.
        first_pass: the pass of the shared stream with which the round starts.
        start: where each DNN starts; (first_pass, 0) unless the round continues an interrupted one. Then it
            is the point at which the DNN stopped. If that is the end of a pass, the group has nothing to do
            until a NextPass names it, and does not report that pass again. After a crash, DNNs may start in
            later passes than first_pass.
        epochs: epochs that each DNN has completed before this round.
        num_preprocessors: number of ranks that make the samples, >= 1: preprocessors; of a DNN that trains
            alone, its own ranks.
        predicted_rate_samples_per_s: per DNN, from the rate table; empty for paradigms that decide without
            rates and know none.
        num_slots: slots of the flotilla when it was formed (>= those of `groups`: a continued round lacks the
            DNNs that had left); alpha of [FLEET] Sec. 4.3.2 is a share of this number. 0: those of `groups`.
        last_pass: all groups leave after this pass; null: the round ends by the rule of alpha.
        measures: DNNs on one slot whose first pass in this round also measures their rate.

    Raises:
        ValueError: if a DNN of `groups` is missing from `start` or `epochs`.
    """

    index: int
    groups: tuple[GroupPlan, ...]
    first_pass: int
    start: Mapping[str, Position]
    epochs: Mapping[str, int]
    num_preprocessors: int
    predicted_rate_samples_per_s: Mapping[str, Number]
    num_slots: int = 0
    last_pass: int | None = None
    measures: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for group in self.groups:
            for name, known in (("start", self.start), ("epochs", self.epochs)):
                if group.dnn_id not in known:
                    raise ValueError(f"{name} lacks {group.dnn_id!r}, which is in groups")

    @property
    def slots_of_dnn(self) -> Mapping[str, tuple[int, ...]]:
        """Slots by DNN."""
        return {group.dnn_id: group.slots for group in self.groups}


@dataclass(frozen=True, slots=True)
class Delta(Facts):
    """How far a DNN's rate may be from the reference rate: delta of [FLEET] Eq. 3.

    Attributes:
        absolute: samples/s, >= 0; or
        relative: a share of the reference rate, >= 0. Exactly one of the two is given.

    Raises:
        PolicyError: if not exactly one is given, or it is negative or not finite.
    """

    absolute: float | None = None
    relative: float | None = None

    def __post_init__(self) -> None:
        if (self.absolute is None) == (self.relative is None):
            raise PolicyError(
                f"delta: got absolute={self.absolute} and relative={self.relative}; give exactly one"
            )
        value = self.absolute if self.absolute is not None else self.relative
        if value is None or not (math.isfinite(value) and value >= 0):
            raise PolicyError(f"delta: got {value}, allowed: finite and not negative")

    def __str__(self) -> str:
        """For people: `20 samples/s` or `35%`."""
        if self.absolute is not None:
            return f"{self.absolute:g} samples/s"
        assert self.relative is not None
        return f"{100.0 * self.relative:g}%"

    def samples_per_s(self, reference_rate: float) -> float:
        """The threshold for a flotilla with this reference rate."""
        if self.absolute is not None:
            return self.absolute
        assert self.relative is not None
        return self.relative * reference_rate


ELASTIC, INDEPENDENT = WITHOUT_ROUNDS = ("elastic", "independent")
"""Each DNN at its own pace: on more slots as others end, or on one slot; see `hpcbal.control.elastic`."""


@dataclass(frozen=True, slots=True)
class Schedule(Facts):
    """A way to form rounds and to end them.

    Attributes:
        paradigm: as in `schedule.paradigm`.
        delta: as in `schedule.delta`; null if the paradigm has none.
        alpha: as in `schedule.alpha`; null if the paradigm has none.
    """

    paradigm: str
    delta: Delta | None = None
    alpha: float | None = None

    @property
    def has_rounds(self) -> bool:
        """Whether DNNs train in rounds, not each at its own pace."""
        return self.paradigm not in WITHOUT_ROUNDS

    def __str__(self) -> str:
        """For people: `global, delta 35%, alpha 0.8`."""
        delta = "" if self.delta is None else f", delta {self.delta}"
        alpha = "" if self.alpha is None else f", alpha {self.alpha:g}"
        return f"{self.paradigm}{delta}{alpha}"


@dataclass(frozen=True, slots=True)
class SchedulePrediction(Facts):
    """Prediction for a schedule, from now to the end of the run.

    Attributes:
        schedule: the schedule, kept to the end.
        remaining_s: predicted seconds; at least as many if `is_cut`.
        num_rounds: rounds until then; with `independent` one per DNN.
        is_cut: whether the prediction was given up, because the schedule already took longer than another.
    """

    schedule: Schedule
    remaining_s: float
    num_rounds: int
    is_cut: bool = False


# ---- events: what has happened -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started(Event):
    """The runtime is ready; the first event of every start, also after a resume."""


@dataclass(frozen=True, slots=True)
class RateMeasured(Event):
    """Written when a profiling run has ended, or a first pass that measures the rate.

    Attributes:
        dnn_id: the DNN that was timed.
        num_slots: number of slots of its group.
        samples_per_s: the rate.
        start_s: time that the group took from its beginning to its first step.
    """

    event: ClassVar[str] = "rate-measured"
    dnn_id: str
    num_slots: int
    samples_per_s: Number
    start_s: Number = 0.0

    def reached(self) -> tuple[str, object]:
        """Return that the rate is known."""
        return f"rate of {self.dnn_id} on {self.num_slots}", True


@dataclass(frozen=True, slots=True)
class PreprocessingMeasured(Event):
    """Written when the rate of one preprocessor is known more accurately than before.

    Attributes:
        samples_per_s: rate of one preprocessor for samples that no cache holds, counting only its busy time.
    """

    event: ClassVar[str] = "preprocessing-measured"
    samples_per_s: Number


@dataclass(frozen=True, slots=True)
class EpochDone(Event):
    """Written when a group reports the end of a pass, validation included; it waits from then on.

    Attributes:
        dnn_id: the DNN.
        pass_index: pass of the shared stream.
        metrics: `loss`, `accuracy` (or the DNN's own metrics), and each with `val_`; null for a value that is
            not finite.
        seconds: wall time of the epoch.
        busy_s: the part of `seconds` without waiting for data.
        offered_slot: a slot without which the group would be faster, judged at the end of the pass; null if
            there is none.
        facts: further measurements of the group's master.
        balancing_would_save: fraction of the time of the training steps, 0 to 1, that balancing would save;
            null if balancing is in use, and for a group of one rank.
        straggler: what the group waited for; null if there was no straggler.
        start_s: seconds from the order to start the group to the end of its first step; null in the group's
            other passes.
    """

    event: ClassVar[str] = "epoch-done"
    dnn_id: str
    pass_index: int
    metrics: Mapping[str, Number]
    seconds: Number
    busy_s: Number = 0.0
    offered_slot: int | None = None
    facts: EpochFacts = NOTHING_MEASURED
    balancing_would_save: float | None = None
    straggler: Straggler | None = None
    start_s: float | None = None


@dataclass(frozen=True, slots=True)
class CheckpointWritten(Event):
    """Written when a checkpoint is complete on disk.

    Attributes:
        dnn_id: the DNN.
        epoch: number of completed epochs.
        position: where the DNN stands in the stream.
        seconds: duration of the write.
        held_s: time for which the group could not train.
        only_progress: whether the weights were left out, because the DNN is done and keeps only its best.
    """

    event: ClassVar[str] = "checkpoint-written"
    dnn_id: str
    epoch: int
    position: Position
    seconds: Number = 0.0
    held_s: Number = 0.0
    only_progress: bool = False

    def reached(self) -> tuple[str, object]:
        """Return the position of the DNN."""
        return self.dnn_id, (self.epoch, self.position.offset)


@dataclass(frozen=True, slots=True)
class GroupLeft(Event):
    """Written when a group has left its slots, because it was asked to, failed or was suspended.

    If leaving required a checkpoint, `checkpoint-written` came before.

    Attributes:
        dnn_id: the DNN of the group.
        wall_time_s: time for which it held its slots.
        slot_seconds: that time multiplied by its number of slots.
    """

    event: ClassVar[str] = "group-left"
    dnn_id: str
    wall_time_s: Number = 0.0
    slot_seconds: Number = 0.0


@dataclass(frozen=True, slots=True)
class DnnFailed(Event):
    """Written when a DNN cannot continue; the other DNNs continue.

    Attributes:
        dnn_id: the DNN.
        cause: `oom`, `nan`, `error`, `checkpoint` or `data`.
        detail: the error; text for users.
        rank: MPI rank that failed; null if unknown.
    """

    event: ClassVar[str] = "dnn-failed"
    dnn_id: str
    cause: str
    detail: str
    rank: int | None = None


LEAST_OVER, LEAST_OVER_OF_MANY, MANY = 0.1, 0.5, 100
"""A choice is made again when this share of its DNNs is over; the second holds for more than `MANY` DNNs.
Their choices take about a second each, in which no group trains."""


@dataclass(frozen=True, slots=True)
class ScheduleChosen(Event):
    """Written when a schedule has been chosen, before the round that it forms; answers ChooseSchedule.

    Attributes:
        schedule: holds until the next choice.
        predictions: what was predicted for each candidate that was tried, in their order.
        previous: the schedule before; null at the first choice of a run.
        preprocessing_samples_per_s: rate of one preprocessor that the predictions used; null: preprocessing
            was no limit. Later choices use the same value, so that they do not depend on measurements of a
            running machine.
        num_dnns: number of DNNs that were not over; the next choice depends on it. Null if it is not known.
        basis: identifies what the choice was made for: all DNNs of the run and the epochs that they may have,
            the candidates, the limit of slots, and the nodes. A resumed run drops a choice with another
            basis. Null if it is not known.
        hit_rate: share of the samples, 0..1, for which the predictions took the caches of nodes to have room.
            Later choices use the same value.
    """

    event: ClassVar[str] = "schedule-chosen"
    schedule: Schedule
    predictions: tuple[SchedulePrediction, ...]
    previous: Schedule | None = None
    preprocessing_samples_per_s: float | None = None
    num_dnns: int | None = None
    basis: str | None = None
    hit_rate: Number = 0.0

    def is_due(self, num_dnns: int) -> bool:
        """Whether to choose again, with this number of DNNs that are not over.

        It is due if `LEAST_OVER` of the DNNs are over since, at least one. So the number of choices grows
        with the logarithm of the number of DNNs, not with the number of rounds.
        """
        if self.num_dnns is None:
            return True
        num_over = self.num_dnns - num_dnns
        least = LEAST_OVER_OF_MANY if self.num_dnns > MANY else LEAST_OVER
        return num_over < 0 or num_over >= max(1, int(least * self.num_dnns))

    @property
    def prediction(self) -> SchedulePrediction:
        """The prediction of the chosen schedule."""
        return next(p for p in self.predictions if p.schedule == self.schedule)

    def best_by_paradigm(self) -> tuple[SchedulePrediction, ...]:
        """The shortest prediction of each paradigm; the chosen schedule comes first, the others by time."""
        best = {self.schedule.paradigm: self.prediction}
        for prediction in sorted(self.predictions, key=cost_of):
            best.setdefault(prediction.schedule.paradigm, prediction)
        first, *others = best.values()
        return (first, *sorted(others, key=lambda p: (p.remaining_s, p.num_rounds)))


def cost_of(prediction: SchedulePrediction) -> tuple[bool, float, int]:
    """Return what predictions are compared by, less is better; cut ones come last."""
    return prediction.is_cut, prediction.remaining_s, prediction.num_rounds


@dataclass(frozen=True, slots=True)
class SuspendRequested(Event):
    """Written when a signal, the walltime or an error asks for a clean stop with exit code 75.

    Attributes:
        reason: text for users.
    """

    event: ClassVar[str] = "suspend-requested"
    reason: str


# ---- instructions: what to do ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartProfiling(Instruction):
    """Written before a wave of groups is timed; each answers with a rate or a failure, then leaves.

    Attributes:
        groups: the groups that are timed at the same time.
    """

    event: ClassVar[str] = "profiling-started"
    groups: tuple[GroupPlan, ...]


@dataclass(frozen=True, slots=True)
class ChooseSchedule(Instruction):
    """Predict what the candidates would lead to and answer with ScheduleChosen; no group trains meanwhile.

    The answer must follow from the ensemble's state alone, so that a run that is repeated or resumed makes
    the same choices.

    Attributes:
        candidates: at least two.
        current: the schedule until now; None at the first choice.
        basis: see `ScheduleChosen`; part of the answer.
    """

    candidates: tuple[Schedule, ...]
    current: Schedule | None
    basis: str | None = None


@dataclass(frozen=True, slots=True)
class ProposeDnns(Instruction):
    """Ask the searches for DNNs; each is answered with DnnAdded, or all with SearchEnded."""

    number: int


@dataclass(frozen=True, slots=True)
class StartRound(Instruction):
    """Written before the groups of a round are formed; each answers with EpochDone per pass.

    Attributes:
        plan: the plan of the round.
    """

    event: ClassVar[str] = "round-started"
    plan: RoundPlan


@dataclass(frozen=True, slots=True)
class StartGroup(Instruction):
    """Written before one group starts to train passes of its own, beside the groups that run.

    The group answers with EpochDone per pass. There is no StopStream: it makes its own batches.

    Attributes:
        plan: a plan with one group.
    """

    event: ClassVar[str] = "group-started"
    plan: RoundPlan


def groups_started(line: Line) -> tuple[GroupPlan, ...]:
    """Return the groups that get their slots with this instruction; none with any other line."""
    match line:
        case StartProfiling(groups):
            return groups
        case StartRound(plan) | StartGroup(plan):
            return plan.groups
    return ()


@dataclass(frozen=True, slots=True)
class NextPass(Instruction):
    """Written when groups continue with another pass; the first pass of a round has no such line.

    Attributes:
        dnn_ids: the DNNs whose groups continue.
        pass_index: pass of the shared stream.
        checkpoint: those of them that take a snapshot of their state first.
    """

    event: ClassVar[str] = "pass-started"
    dnn_ids: tuple[str, ...]
    pass_index: int
    checkpoint: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LeaveOut(Instruction):
    """Written when a DNN drops a slot for as long as the hosts stay the same; all groups leave at once.

    Attributes:
        dnn_id: the DNN that continues without the slot.
        slot: the slot.
    """

    event: ClassVar[str] = "slot-left-out"
    dnn_id: str
    slot: int


@dataclass(frozen=True, slots=True)
class LeaveRound(Instruction):
    """Written when a group is asked to save a checkpoint and leave the round after a whole pass.

    Attributes:
        dnn_id: the DNN of the group.
        reason: `converged`; `paused` until other DNNs have results, or `pruned`, see `prune`;
            `stopped` by the user; or `regroup`.
        detail: the rule that applied, or the slot that a group drops; text for users.
    """

    event: ClassVar[str] = "leave-round"
    dnn_id: str
    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class SuspendGroups(Instruction):
    """These groups stop at their next step, write a checkpoint at that position, and leave."""

    dnn_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StopStream(Instruction):
    """Written when all groups of a round have left, before its shared stream ends.

    Attributes:
        index: index of the round.
        suspended: whether it was stopped on request; the next start resumes it.
        continues: whether the next round is this one without some slots, even if the run is killed before
            that starts.
    """

    event: ClassVar[str] = "round-ended"
    index: int
    suspended: bool = False
    continues: bool = False


@dataclass(frozen=True, slots=True)
class Finish(Instruction):
    """The run is over: 'done', 'failed-dnns', 'suspended', or 'profiled' where only rates were asked for."""

    outcome: str


# ---- facts: what the state machine can tell about itself ---------------------------------------


@dataclass(frozen=True, slots=True)
class IdleSlots(Line):
    """Written when a round leaves slots idle although DNNs wait; once for each reason in a round.

    Attributes:
        round_index: index of the round.
        num_idle: number of idle slots, >= 1.
        waiting: DNNs that wait for a later round, at least one.
        why: the rule that keeps them waiting; text for users.
        change: what would change it; text for users.
    """

    event: ClassVar[str] = "slots-idle"
    round_index: int
    num_idle: int
    waiting: tuple[str, ...]
    why: str
    change: str

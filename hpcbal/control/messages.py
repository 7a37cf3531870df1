"""What goes into the ensemble's state machine (events) and what comes out (instructions)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpcbal.control.schedules import Choice, Schedule
from hpcbal.values import Position


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One DNN and the GPUs (cluster numbering) that train it; the first GPU's rank is the master."""

    dnn_id: str
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """One round of [FLEET] Alg. 1: a flotilla with its placement; or one DNN that trains alone.

    Attributes:
        index: number of the round, counted from 0 over the life of the ensemble, resumes included.
        groups: the flotilla; no GPU occurs twice.
        first_pass: the pass of the shared stream with which the round starts.
        start: where each DNN starts; (first_pass, 0) unless the round continues an interrupted one. Then it
            is the point at which the DNN stopped. If that is the end of a pass, the group has nothing to do
            until a NextPass names it, and does not report that pass again. After a crash, DNNs may start in
            later passes than first_pass.
        epochs: epochs that each DNN has completed before this round.
        num_preprocessors: number of preprocessor ranks that make blocks, >= 1.
        predicted_rate_samples_per_s: per DNN, from the rate table; empty for paradigms that decide without
            rates and know none.
        num_gpus: GPUs of the flotilla when it was formed (>= those of `groups`, since a continued round lacks
            the DNNs that had left); alpha of [FLEET] Sec. 4.3.2 is a share of this number. 0: those of
            `groups`.
        last_pass: all groups leave after this pass; None: the round ends by the rule of alpha.
    """

    index: int
    groups: tuple[GroupPlan, ...]
    first_pass: int
    start: Mapping[str, Position]
    epochs: Mapping[str, int]
    num_preprocessors: int
    predicted_rate_samples_per_s: Mapping[str, float]
    num_gpus: int = 0
    last_pass: int | None = None


# ---- events: what has happened -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Event:
    """Base class of all events."""


@dataclass(frozen=True, slots=True)
class Started(Event):
    """The runtime is ready; the first event of every start, also after a resume."""


@dataclass(frozen=True, slots=True)
class RateMeasured(Event):
    """A profiling run of `dnn_id` on `num_gpus` trainers, or its first pass, measured `samples_per_s`."""

    dnn_id: str
    num_gpus: int
    samples_per_s: float


@dataclass(frozen=True, slots=True)
class PreprocessingMeasured(Event):
    """One preprocessor rank makes `samples_per_s` (busy time only)."""

    samples_per_s: float


@dataclass(frozen=True, slots=True)
class EpochDone(Event):
    """A trainer group has finished pass `pass_index`, including validation, and waits.

    `metrics` contains at least `loss`, `val_loss`, `val_accuracy`, `accuracy`. `seconds` is the wall time of
    the epoch, `busy_s` the part of it that was not spent waiting for data. `offered_gpu` (cluster numbering)
    is a GPU without which the group would be faster, judged at the end of the pass.
    """

    dnn_id: str
    pass_index: int
    metrics: Mapping[str, float]
    seconds: float
    busy_s: float = 0.0
    offered_gpu: int | None = None


@dataclass(frozen=True, slots=True)
class CheckpointWritten(Event):
    """The checkpoint of `dnn_id` after `epoch` epochs, at `position`, is completely on disk."""

    dnn_id: str
    epoch: int
    position: Position


@dataclass(frozen=True, slots=True)
class GroupLeft(Event):
    """The group of `dnn_id` has left, because it was asked to, failed or was suspended; its GPUs are free.

    If leaving required a checkpoint, CheckpointWritten came before.
    """

    dnn_id: str


@dataclass(frozen=True, slots=True)
class DnnFailed(Event):
    """A DNN cannot continue.

    Attributes:
        cause: one of oom, nan, error, checkpoint, data.
        detail: the error message, for people.
        rank: the world rank where it happened; -1 if unknown.
    """

    dnn_id: str
    cause: str
    detail: str
    rank: int = -1


@dataclass(frozen=True, slots=True)
class ScheduleChosen(Event):
    """The answer to ChooseSchedule."""

    choice: Choice


@dataclass(frozen=True, slots=True)
class SuspendRequested(Event):
    """A signal or the walltime asks for a clean stop with exit code 75."""

    reason: str


# ---- instructions: what to do ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Instruction:
    """Base class of all instructions."""


@dataclass(frozen=True, slots=True)
class StartProfiling(Instruction):
    """Time these groups side by side; each answers with RateMeasured or DnnFailed, then GroupLeft."""

    groups: tuple[GroupPlan, ...]


@dataclass(frozen=True, slots=True)
class ChooseSchedule(Instruction):
    """Predict what the candidates would lead to and answer with ScheduleChosen; no group trains meanwhile.

    The answer must follow from the ensemble's state alone, so that a run that is repeated or resumed makes
    the same choices.

    Attributes:
        candidates: at least two.
        current: the schedule until now; None at the first choice.
        basis: see `Choice`; part of the answer.
    """

    candidates: tuple[Schedule, ...]
    current: Schedule | None
    basis: str | None = None


@dataclass(frozen=True, slots=True)
class StartRound(Instruction):
    """Start the shared stream and these groups; answer with EpochDone per group and pass."""

    plan: RoundPlan


@dataclass(frozen=True, slots=True)
class StartAlone(Instruction):
    """Start the one group of `plan`, on one GPU with its own stream, beside the groups that run.

    Answer with EpochDone per pass. There is no StopStream: its stream ends when the group leaves.
    """

    plan: RoundPlan


@dataclass(frozen=True, slots=True)
class NextPass(Instruction):
    """These groups continue with `pass_index`; those in `checkpoint` take a snapshot of their state first."""

    dnn_ids: tuple[str, ...]
    pass_index: int
    checkpoint: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LeaveOut(Instruction):
    """Remember, also over restarts, that `dnn_id` goes on without `gpu`; no answer is expected.

    LeaveRound for all groups of the round follows at once.
    """

    dnn_id: str
    gpu: int


@dataclass(frozen=True, slots=True)
class LeaveRound(Instruction):
    """The group of `dnn_id` writes its checkpoint and leaves: CheckpointWritten, then GroupLeft.

    `reason` is 'converged', 'pruned' or 'paused' (`detail` names the rule), or 'regroup' (`detail` names the
    DNNs that go on without a GPU, if that is the reason).
    """

    dnn_id: str
    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class SuspendGroups(Instruction):
    """These groups stop at their next step, write a checkpoint at that position, and leave."""

    dnn_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StopStream(Instruction):
    """All groups of the round have left: end the shared stream of round `index`.

    `continues`: the next round is this one without some GPUs, even if the run is killed before it starts.
    """

    index: int
    continues: bool = False


@dataclass(frozen=True, slots=True)
class Finish(Instruction):
    """The run is over: 'done', 'failed-dnns', 'suspended', or 'profiled' where only rates were asked for."""

    outcome: str

"""Convert events and instructions of an ensemble's state machine to lines; pure, for every executor."""

from __future__ import annotations

import math

from hpcbal.control.messages import (
    CheckpointWritten,
    DnnFailed,
    EpochDone,
    Event,
    GroupPlan,
    Instruction,
    LeaveOut,
    LeaveRound,
    NextPass,
    PreprocessingMeasured,
    RateMeasured,
    RoundPlan,
    ScheduleChosen,
    StartAlone,
    StartProfiling,
    StartRound,
    StopStream,
    SuspendRequested,
)
from hpcbal.control.schedules import Choice, Prediction, Schedule
from hpcbal.control.snapshot import IdleSlots
from hpcbal.policies import Delta
from hpcbal.telemetry.ledger.dnn_lines import (
    CheckpointWrittenLine,
    DnnFailedLine,
    EpochDoneLine,
    EpochFacts,
    GpuLeftOutLine,
    GroupFacts,
    LeaveRoundLine,
    PassStartedLine,
    PlanFacts,
    PredictionFacts,
    ProfilingStartedLine,
    RateMeasuredLine,
    RoundEndedLine,
    RoundStartedLine,
    ScheduleChosenLine,
    ScheduleFacts,
    SlotsIdleLine,
    StartedAloneLine,
    Straggler,
)
from hpcbal.telemetry.ledger.line import Line
from hpcbal.telemetry.ledger.preprocessing import PreprocessingMeasuredLine
from hpcbal.telemetry.ledger.run import SuspendRequestedLine


def line_of_event(event: Event) -> Line | None:
    """The line of an event that needs no further measurements; None for other events."""
    match event:
        case RateMeasured():
            return RateMeasuredLine(event.dnn_id, event.num_gpus, event.samples_per_s)
        case ScheduleChosen(choice):
            return line_of_choice(choice)
        case PreprocessingMeasured():
            return PreprocessingMeasuredLine(event.samples_per_s)
        case DnnFailed():
            rank = event.rank if event.rank >= 0 else None
            return DnnFailedLine(event.dnn_id, event.cause, event.detail, rank)
        case SuspendRequested():
            return SuspendRequestedLine(event.reason)
    return None


def line_of_epoch(
    event: EpochDone,
    facts: EpochFacts,
    balancing_would_save: float | None = None,
    straggler: Straggler | None = None,
) -> EpochDoneLine:
    """The line of an epoch; a metric that is NaN or infinite becomes None."""
    return EpochDoneLine(
        dnn=event.dnn_id,
        pass_index=event.pass_index,
        seconds=event.seconds,
        busy_s=event.busy_s,
        metrics={name: value if math.isfinite(value) else None for name, value in event.metrics.items()},
        facts=facts,
        balancing_would_save=balancing_would_save,
        straggler=straggler,
    )


def line_of_checkpoint(
    event: CheckpointWritten, seconds: float, held_s: float, *, only_progress: bool = False
) -> CheckpointWrittenLine:
    """The line of a checkpoint that took `seconds` to write and kept its group waiting for `held_s`."""
    position = event.position
    return CheckpointWrittenLine(
        event.dnn_id, event.epoch, position.pass_index, position.offset, seconds, held_s, only_progress
    )


def line_of_instruction(instruction: Instruction, *, suspending: bool) -> Line | None:
    """The line of an instruction; None if it has none.

    Args:
        suspending: whether the ensemble is being stopped on request.
    """
    match instruction:
        case StartProfiling(groups):
            return ProfilingStartedLine(tuple(map(group_facts, groups)))
        case StartRound(plan):
            return RoundStartedLine(plan_facts(plan))
        case StartAlone(plan):
            return StartedAloneLine(plan_facts(plan))
        case NextPass():
            return PassStartedLine(instruction.pass_index, instruction.dnn_ids)
        case LeaveOut(dnn_id, gpu):
            return GpuLeftOutLine(dnn_id, gpu)
        case LeaveRound():
            return LeaveRoundLine(instruction.dnn_id, instruction.reason, instruction.detail)
        case StopStream():
            return RoundEndedLine(instruction.index, suspending, instruction.continues)
    return None


def line_of_idle(idle: IdleSlots) -> SlotsIdleLine:
    """The line of idle slots."""
    return SlotsIdleLine(idle.round_index, idle.num_idle, idle.waiting, idle.why, idle.change)


def line_of_choice(choice: Choice) -> ScheduleChosenLine:
    """The line of a choice."""
    return ScheduleChosenLine(
        schedule=schedule_facts(choice.schedule),
        predictions=tuple(
            PredictionFacts(schedule_facts(p.schedule), p.remaining_s, p.num_rounds, p.is_cut)
            for p in choice.predictions
        ),
        previous=None if choice.previous is None else schedule_facts(choice.previous),
        preprocessing_samples_per_s=choice.preprocessing_samples_per_s,
        num_dnns=choice.num_dnns,
        basis=choice.basis,
    )


def choice_of_line(line: ScheduleChosenLine) -> Choice:
    """The inverse of `line_of_choice`."""
    return Choice(
        schedule=schedule_of(line.schedule),
        predictions=tuple(
            Prediction(schedule_of(p.schedule), p.remaining_s, p.num_rounds, p.cut) for p in line.predictions
        ),
        previous=None if line.previous is None else schedule_of(line.previous),
        preprocessing_samples_per_s=line.preprocessing_samples_per_s,
        num_dnns=line.num_dnns,
        basis=line.basis,
    )


def schedule_facts(schedule: Schedule) -> ScheduleFacts:
    """A schedule in the ledger's form."""
    delta = schedule.delta
    absolute, relative = (None, None) if delta is None else (delta.absolute, delta.relative)
    return ScheduleFacts(schedule.paradigm, absolute, relative, schedule.alpha)


def schedule_of(facts: ScheduleFacts) -> Schedule:
    """The inverse of `schedule_facts`."""
    absolute, relative = facts.delta_samples_per_s, facts.delta_share
    delta = None if absolute is None and relative is None else Delta(absolute, relative)
    return Schedule(facts.paradigm, delta, facts.alpha)


def group_facts(group: GroupPlan) -> GroupFacts:
    """A group in the ledger's form."""
    return GroupFacts(group.dnn_id, group.gpus)


def plan_facts(plan: RoundPlan) -> PlanFacts:
    """A plan in the ledger's form."""
    return PlanFacts(
        index=plan.index,
        groups=tuple(map(group_facts, plan.groups)),
        first_pass=plan.first_pass,
        start=dict(plan.start),
        epochs=dict(plan.epochs),
        num_preprocessors=plan.num_preprocessors,
        predicted_rate_samples_per_s=dict(plan.predicted_rate_samples_per_s),
        num_gpus=plan.num_gpus,
        last_pass=plan.last_pass,
    )


def round_plan(facts: PlanFacts) -> RoundPlan:
    """The inverse of `plan_facts`."""
    return RoundPlan(
        index=facts.index,
        groups=tuple(GroupPlan(group.dnn, group.gpus) for group in facts.groups),
        first_pass=facts.first_pass,
        start=dict(facts.start),
        epochs=dict(facts.epochs),
        num_preprocessors=facts.num_preprocessors,
        predicted_rate_samples_per_s=dict(facts.predicted_rate_samples_per_s),
        num_gpus=facts.num_gpus,
        last_pass=facts.last_pass,
    )

"""Events and instructions of the state machine become lines, the same for every executor."""

from __future__ import annotations

import math

import pytest
from ledger_lines import a

from hpcbal.control import Choice, Prediction, Schedule, messages
from hpcbal.control.messages import Event, GroupPlan, Instruction, RoundPlan
from hpcbal.policies import Delta
from hpcbal.telemetry.ledger import (
    CheckpointWrittenLine,
    DnnFailedLine,
    EpochFacts,
    GpuLeftOutLine,
    GroupFacts,
    LeaveRoundLine,
    Line,
    PassStartedLine,
    PredictionFacts,
    PreprocessingMeasuredLine,
    ProfilingStartedLine,
    RateMeasuredLine,
    RoundEndedLine,
    RoundStartedLine,
    ScheduleChosenLine,
    ScheduleFacts,
    StartedAloneLine,
    Straggler,
    SuspendRequestedLine,
)
from hpcbal.telemetry.ledger.of_control import (
    choice_of_line,
    line_of_checkpoint,
    line_of_choice,
    line_of_epoch,
    line_of_event,
    line_of_instruction,
    plan_facts,
    round_plan,
)
from hpcbal.values import Position

GROUP = GroupPlan("a", (0, 1))
PLAN = RoundPlan(3, (GROUP,), 7, {"a": Position(8, 40)}, {"a": 2}, 1, {"a": 10.0}, num_gpus=4, last_pass=9)
EPOCH = messages.EpochDone("a", 7, {"loss": math.nan, "val_loss": math.inf, "accuracy": 0.5}, 3.0, 2.5)

PAPER = Schedule("global", Delta(absolute=20.0), 0.8)
LOCAL = Schedule("local", Delta(relative=0.2))
CHOICE = Choice(
    LOCAL,
    (
        Prediction(PAPER, 5.0, 4, is_cut=True),
        Prediction(LOCAL, 3.0, 2),
        Prediction(Schedule("independent"), 4.0, 9),
    ),
    PAPER,
    50.0,
    17,
)

EVENTS: dict[Event, Line | None] = {
    messages.Started(): None,
    messages.RateMeasured("a", 2, 100.0): RateMeasuredLine("a", 2, 100.0),
    messages.PreprocessingMeasured(50.0): PreprocessingMeasuredLine(50.0),
    messages.CheckpointWritten("a", 2, Position(7)): None,
    messages.GroupLeft("a"): None,
    messages.DnnFailed("a", "oom", "17 GiB"): DnnFailedLine("a", "oom", "17 GiB", rank=None),
    messages.DnnFailed("a", "nan", "", rank=0): DnnFailedLine("a", "nan", "", rank=0),
    messages.ScheduleChosen(CHOICE): ScheduleChosenLine(
        schedule=ScheduleFacts("local", None, 0.2, None),
        predictions=(
            PredictionFacts(ScheduleFacts("global", 20.0, None, 0.8), 5.0, 4, cut=True),
            PredictionFacts(ScheduleFacts("local", None, 0.2, None), 3.0, 2, cut=False),
            PredictionFacts(ScheduleFacts("independent", None, None, None), 4.0, 9, cut=False),
        ),
        previous=ScheduleFacts("global", 20.0, None, 0.8),
        preprocessing_samples_per_s=50.0,
        num_dnns=17,
    ),
    messages.SuspendRequested("signal"): SuspendRequestedLine("signal"),
}
INSTRUCTIONS: list[tuple[Instruction, Line | None]] = [
    (messages.StartProfiling((GROUP,)), ProfilingStartedLine((GroupFacts("a", (0, 1)),))),
    (messages.ChooseSchedule((Schedule("independent"),), None), None),
    (messages.StartRound(PLAN), RoundStartedLine(plan_facts(PLAN))),
    (messages.StartAlone(PLAN), StartedAloneLine(plan_facts(PLAN))),
    (messages.NextPass(("a", "b"), 8, ("a",)), PassStartedLine(8, ("a", "b"))),
    (messages.LeaveOut("a", 1), GpuLeftOutLine("a", 1)),
    (messages.LeaveRound("a", "regroup", "why"), LeaveRoundLine("a", "regroup", "why")),
    (messages.SuspendGroups(("a",)), None),
    (messages.StopStream(3, continues=True), RoundEndedLine(3, suspended=False, continues=True)),
    (messages.Finish("done"), None),
]


@pytest.mark.parametrize(("event", "line"), EVENTS.items(), ids=lambda value: type(value).__name__)
def test_events_have_their_lines(event: Event, line: Line | None) -> None:
    assert line_of_event(event) == line


@pytest.mark.parametrize(("instruction", "line"), INSTRUCTIONS, ids=lambda value: type(value).__name__)
def test_instructions_have_their_lines(instruction: Instruction, line: Line | None) -> None:
    assert line_of_instruction(instruction, suspending=False) == line


def test_a_choice_is_read_back_as_it_was_written() -> None:
    assert choice_of_line(line_of_choice(CHOICE)) == CHOICE


def test_the_lists_above_leave_out_no_message() -> None:
    known = {type(event).__name__ for event in EVENTS} | {type(each).__name__ for each, _ in INSTRUCTIONS}
    all_names = {kind.__name__ for base in (Event, Instruction) for kind in base.__subclasses__()}
    assert known | {"EpochDone"} == all_names


def test_a_round_that_ends_while_the_run_is_stopped_is_suspended() -> None:
    line = line_of_instruction(messages.StopStream(3), suspending=True)
    assert line == RoundEndedLine(3, suspended=True, continues=False)


def test_a_metric_that_is_no_finite_number_is_null() -> None:
    facts, straggler = a(EpochFacts, num_steps=3), Straggler(1, "input", 0.5)
    line = line_of_epoch(EPOCH, facts, 0.25, straggler)
    assert line.metrics == {"loss": None, "val_loss": None, "accuracy": 0.5}
    assert (line.dnn, line.pass_index, line.seconds, line.busy_s) == ("a", 7, 3.0, 2.5)
    assert (line.facts, line.balancing_would_save, line.straggler) == (facts, 0.25, straggler)


def test_a_checkpoint_has_its_position_and_its_cost() -> None:
    event = messages.CheckpointWritten("a", 2, Position(7, 40))
    assert line_of_checkpoint(event, 0.5, 0.1) == CheckpointWrittenLine("a", 2, 7, 40, 0.5, 0.1)


def test_a_plan_comes_back_whole() -> None:
    assert round_plan(plan_facts(PLAN)) == PLAN

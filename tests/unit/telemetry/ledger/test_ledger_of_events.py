"""Events and instructions of the ensemble's state machine are lines of the ledger as they are."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from hpcbal.events import ensemble as events
from hpcbal.events.ensemble import (
    CheckpointWritten,
    Delta,
    DnnFailed,
    EpochDone,
    Event,
    GroupPlan,
    Instruction,
    LeaveOut,
    NextPass,
    RoundPlan,
    Schedule,
    ScheduleChosen,
    SchedulePrediction,
    StartRound,
    StopStream,
)
from hpcbal.events.history import Position
from hpcbal.events.line import Line
from hpcbal.events.members import DnnAdded, DnnSpec, StopRule
from hpcbal.telemetry.ledger.codec import Entry, entry_of, plain_of
from hpcbal.telemetry.ledger.registry import LINE_BY_EVENT

NOT_WRITTEN = {events.Started, events.ChooseSchedule, events.ProposeDnns, events.SuspendGroups, events.Finish}
PLAN = RoundPlan(
    3,
    (GroupPlan("a", (0, 1)),),
    7,
    {"a": Position(8, 40)},
    {"a": 2},
    1,
    {"a": 10.0},
    num_slots=4,
    last_pass=9,
)
PAPER = Schedule("global", Delta(absolute=20.0), 0.8)
LOCAL = Schedule("local", Delta(relative=0.2))
CHOICE = ScheduleChosen(
    LOCAL,
    (
        SchedulePrediction(PAPER, 5.0, 4, is_cut=True),
        SchedulePrediction(LOCAL, 3.0, 2),
        SchedulePrediction(Schedule("independent"), 4.0, 9),
    ),
    PAPER,
    50.0,
    17,
)


def written(line: Line) -> dict[str, Any]:
    """A line as it stands in the file, without the fields that all lines have."""
    plain: dict[str, Any] = json.loads(json.dumps(plain_of(Entry(0, "2025-01-31T12:00:00.000Z", line))))
    return {name: value for name, value in plain.items() if name not in ("schema", "seq", "time")}


def test_every_event_and_instruction_is_a_line_but_those_that_need_not_be_remembered() -> None:
    kinds = {
        kind
        for kind in vars(events).values()
        if isinstance(kind, type)
        and issubclass(kind, Event | Instruction)
        and kind not in (Event, Instruction)
    }
    assert {kind for kind in kinds if not kind.event} == NOT_WRITTEN
    assert {LINE_BY_EVENT[kind.event] for kind in kinds - NOT_WRITTEN} == kinds - NOT_WRITTEN


@pytest.mark.parametrize("line", [CHOICE, StartRound(PLAN), StopStream(3, suspended=True)])
def test_what_a_resume_needs_is_read_as_it_was_written(line: Line) -> None:
    assert entry_of(plain_of(Entry(0, "2025-01-31T12:00:00.000Z", line))).line == line


def test_a_dnn_is_called_so_in_the_file() -> None:
    assert written(LeaveOut("a", 1)) == {"event": "slot-left-out", "dnn": "a", "slot": 1}
    assert written(NextPass(("a", "b"), 8))["dnns"] == ["a", "b"]
    assert written(StartRound(PLAN))["plan"]["groups"] == [{"dnn": "a", "slots": [0, 1]}]
    assert written(DnnFailed("a", "oom", "17 GiB"))["rank"] is None


def test_a_metric_that_is_no_finite_number_is_null() -> None:
    event = EpochDone("a", 7, {"loss": math.nan, "val_loss": math.inf, "accuracy": 0.5}, 3.0, 2.5)
    assert written(event)["metrics"] == {"loss": None, "val_loss": None, "accuracy": 0.5}


def test_a_checkpoint_has_its_position_and_its_cost() -> None:
    fields = written(CheckpointWritten("a", 2, Position(7, 40), 0.5, 0.1))
    assert fields["position"] == {"pass_index": 7, "offset": 40}
    assert (fields["seconds"], fields["held_s"], fields["only_progress"]) == (0.5, 0.1, False)


def test_a_delta_of_two_kinds_is_no_line() -> None:
    plain = plain_of(Entry(0, "2025-01-31T12:00:00.000Z", CHOICE))
    plain["schedule"]["delta"] = {"absolute": 1.0, "relative": 0.5}
    with pytest.raises(ValueError, match="give exactly one"):
        entry_of(plain)


def test_a_dnn_that_stops_by_an_unknown_rule_is_no_line() -> None:
    added = DnnAdded(DnnSpec("a", 8, StopRule()), {1: 20.0})
    plain = plain_of(Entry(0, "2025-01-31T12:00:00.000Z", added))
    plain["spec"]["stop"]["mode"] = "most"
    with pytest.raises(ValueError, match=r"stop\.mode: got 'most', allowed: 'max', 'min'"):
        entry_of(plain)

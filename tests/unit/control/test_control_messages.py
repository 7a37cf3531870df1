"""Messages, errors and the event log."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from hpcbal.control.state import ControlError
from hpcbal.control.states import TERMINAL, TRANSITIONS, WITH_GROUP, DnnState
from hpcbal.events import ensemble as messages
from hpcbal.events.ensemble import (
    Delta,
    EpochDone,
    Event,
    GroupPlan,
    Instruction,
    RoundPlan,
    Schedule,
    SchedulePrediction,
    Started,
    SuspendRequested,
)
from hpcbal.events.history import EpochFacts, Position, Straggler
from hpcbal.events.members import DnnSpec, StopRule

PLAN = RoundPlan(3, (GroupPlan("a", (0, 1)),), 5, {"a": Position(5, 7)}, {"a": 2}, 1, {"a": 10.0}, 2, 6)
VALUE_BY_TYPE: dict[str, Any] = {
    "str | None": "text",
    "str": "a",
    "int": 1,
    "int | None": 3,
    "bool": True,
    "float": 0.5,
    "DnnSpec": DnnSpec("a", 8, StopRule(patience=2, max_epochs=3)),
    "Mapping[int, Number]": {1: 10.0},
    "Position": Position(1, 2),
    "Number": 0.5,
    "float | None": 0.25,
    "EpochFacts": EpochFacts(0.5, 3, 48, 48, 1.0),
    "Straggler | None": Straggler(1, "input", 0.5),
    "Schedule": Schedule("local", Delta(relative=0.2)),
    "tuple[SchedulePrediction, ...]": (SchedulePrediction(Schedule("local", Delta(relative=0.2)), 3.0, 2),),
    "tuple[Schedule, ...]": (Schedule("independent"), Schedule("global", Delta(absolute=20.0), 0.8)),
    "Schedule | None": Schedule("independent"),
    "RoundPlan": PLAN,
    "Mapping[str, Number]": {"val_accuracy": 0.5},
    "tuple[str, ...]": ("a", "b"),
    "tuple[GroupPlan, ...]": PLAN.groups,
}


def examples(base: type) -> list[Any]:
    """One instance of every message class, all fields filled."""
    return [
        kind(*(VALUE_BY_TYPE[str(field.type)] for field in dataclasses.fields(kind)))
        for kind in vars(messages).values()
        if isinstance(kind, type) and issubclass(kind, base) and kind is not base
    ]


@pytest.mark.parametrize("message", examples(Event) + examples(Instruction), ids=lambda m: type(m).__name__)
def test_messages_survive_pickling_and_say_who_sends_them(message: Any) -> None:
    assert pickle.loads(pickle.dumps(message)) == message
    assert type(message).__doc__
    assert type(message).__dataclass_params__.frozen
    assert not hasattr(message, "__dict__")


def test_errors_survive_pickling_with_their_events() -> None:
    error = ControlError("what", "a", (Started(),), (Started(), SuspendRequested("x")))
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert (again.subject, again.subject_events, again.events) == (
        error.subject,
        error.subject_events,
        error.events,
    )


def test_an_error_shows_the_events_of_the_dnn_and_of_the_ensemble() -> None:
    own = EpochDone("a", 1, {"val_accuracy": 0.5}, 1.0)
    text = str(ControlError("what happened", "a", (own,), (Started(), own)))
    assert text.splitlines()[0] == "what happened"
    assert "events of a:" in text
    assert text.count("EpochDone(dnn_id='a', pass_index=1") == 2
    assert "Started()" in text


def test_every_state_has_its_transitions_and_the_final_ones_have_none() -> None:
    assert set(TRANSITIONS) == set(DnnState)
    assert {state for state, following in TRANSITIONS.items() if not following} == TERMINAL
    for state in set(DnnState) - TERMINAL:
        assert DnnState.FAILED in TRANSITIONS[state]
    assert not WITH_GROUP & TERMINAL

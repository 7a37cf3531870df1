"""Elastic: DNNs train at their own pace, and change their slots only at the end of their own passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hpcbal.control import ResumeState, StopRule
from hpcbal.events.ensemble import (
    DnnFailed,
    Finish,
    GroupLeft,
    Instruction,
    LeaveOut,
    LeaveRound,
    NextPass,
    StartGroup,
    SuspendGroups,
    SuspendRequested,
)
from hpcbal.events.history import Position

Drive = Callable[..., Any]

UNKNOWN = StopRule(max_epochs=50, patience=40)
"""A DNN whose length nobody knows."""


def slots_of(instructions: list[Instruction]) -> dict[str, tuple[int, ...]]:
    started = [i.plan.groups[0] for i in instructions if isinstance(i, StartGroup)]
    return {group.dnn_id: group.slots for group in started}


def linear(rate: float, kept: float = 0.98, most: int = 4) -> list[float]:
    return [rate * m * kept ** (m - 1) for m in range(1, most + 1)]


def test_a_long_dnn_starts_on_several_slots_while_short_ones_take_turns_on_one(drive: Drive) -> None:
    rates = dict.fromkeys("abc", linear(100.0))
    run = drive({"a": 12, "b": 2, "c": 2}, (4,), rates=rates, paradigm="elastic", checkpoint_every_pass=False)
    assert {name: len(slots) for name, slots in slots_of(run.start()).items()} == {"a": 3, "b": 1}
    assert run.epoch("b") == [NextPass(("b",), 1)]  # nobody waits for the others
    assert run.epoch("b") == [LeaveRound("b", "converged", "2 of at most 2 epochs")]
    assert run.epoch("a") == [NextPass(("a",), 1)]  # b's slot is not free yet
    assert {name: len(slots) for name, slots in slots_of(run.leave("b")).items()} == {"c": 1}


def test_a_group_grows_onto_free_slots_at_the_end_of_its_own_pass(drive: Drive) -> None:
    rates = dict.fromkeys("ab", linear(1.0))  # passes take long, so that a change is worth it
    run = drive({"a": 8, "b": 8}, (4,), rates=rates, paradigm="elastic", checkpoint_every_pass=False)
    assert {name: len(slots) for name, slots in slots_of(run.start()).items()} == {"a": 2, "b": 2}
    run.send(DnnFailed("b", "oom", "too large"))
    run.send(GroupLeft("b"))
    (leave,) = run.epoch("a", start_s=0.1)
    assert leave == LeaveRound("a", "regroup", "goes on with 4 slots")
    assert run.ensemble.state.reserved == {"a": (0, 1, 2, 3)}
    started = run.leave("a")
    assert slots_of(started) == {"a": (0, 1, 2, 3)}
    plan = started[0].plan
    assert (plan.start["a"], plan.epochs["a"]) == (Position(1), 1)
    assert run.ensemble.state.reserved == {}


@pytest.mark.parametrize(("start_s", "grows"), [(0.1, True), (1e6, False)])
def test_a_change_must_gain_more_than_it_costs(drive: Drive, start_s: float, grows: bool) -> None:
    rates = dict.fromkeys("ab", linear(1.0))
    run = drive({"a": 8, "b": 8}, (4,), rates=rates, paradigm="elastic", checkpoint_every_pass=False)
    run.start()
    run.send(DnnFailed("b", "oom", "too large"))
    run.send(GroupLeft("b"))
    (instruction,) = run.epoch("a", start_s=start_s)
    assert isinstance(instruction, LeaveRound) == grows


def test_slots_are_given_back_when_others_lack_them_and_the_start_has_paid_off(drive: Drive) -> None:
    """a has trained more epochs than b, which is expected to train as many, so b is behind."""
    rates = dict.fromkeys("ab", linear(1.0))
    run = drive(
        dict.fromkeys("ab", UNKNOWN), (4,), rates=rates, paradigm="elastic", checkpoint_every_pass=False
    )
    assert {name: len(slots) for name, slots in slots_of(run.start()).items()} == {"a": 2, "b": 2}
    assert run.epoch("a", seconds=10.0, start_s=1.0) == [NextPass(("a",), 1)]  # 2 s are more than 3 % of that
    assert run.epoch("a", seconds=100.0) == [LeaveRound("a", "regroup", "goes on with 1 slot")]
    assert len(slots_of(run.leave("a"))["a"]) == 1
    assert run.epoch("b", seconds=200.0, start_s=1.0) == [LeaveRound("b", "regroup", "goes on with 3 slots")]
    assert len(slots_of(run.leave("b"))["b"]) == 3


def test_more_dnns_than_slots_take_turns_and_none_leaves_before_its_start_has_paid_off(drive: Drive) -> None:
    rates = dict.fromkeys("ab", linear(1.0, most=1))
    run = drive(dict.fromkeys("ab", UNKNOWN), (1,), rates=rates, paradigm="elastic")
    assert slots_of(run.start()) == {"a": (0,)}
    seconds = 10.0
    # A change costs 2 s (as long to save as to start), at most 3 % of 70 s.
    for epoch in range(6):
        assert isinstance(run.epoch("a", seconds=seconds, start_s=0.0 if epoch else 1.0)[0], NextPass)
    assert run.epoch("a", seconds=seconds) == [
        LeaveRound("a", "regroup", "makes room for DNNs that need longer")
    ]
    assert slots_of(run.leave("a")) == {"b": (0,)}
    assert run.state_of("a") == "waiting"
    assert run.ensemble.state.live_ids() == ["a", "b"]


def test_independent_dnns_keep_their_slot_to_the_end(drive: Drive) -> None:
    rates = dict.fromkeys("ab", linear(1.0, most=1))
    run = drive({"a": 9, "b": 9}, (1,), rates=rates, paradigm="independent")
    run.start()
    for _ in range(8):
        assert isinstance(run.epoch("a", seconds=100.0)[0], NextPass)
    assert isinstance(run.epoch("a")[0], LeaveRound)


def test_a_slot_that_makes_a_group_slower_is_left_out_and_the_group_starts_again_without_it(
    drive: Drive,
) -> None:
    run = drive({"a": 8}, (2,), rates={"a": linear(1.0, most=2)}, paradigm="elastic")
    assert slots_of(run.start()) == {"a": (0, 1)}
    assert run.epoch("a", offers={"a": 1}) == [
        LeaveOut("a", 1),
        LeaveRound("a", "regroup", "goes on with 1 slot"),
    ]
    assert slots_of(run.leave("a")) == {"a": (0,)}
    assert isinstance(run.epoch("a", start_s=0.01)[0], NextPass)  # it does not want that slot again


def test_a_stop_while_a_group_changes_its_slots_reserves_nothing(drive: Drive) -> None:
    run = drive({"a": 8, "b": 8}, (4,), rates=dict.fromkeys("ab", linear(1.0)), paradigm="elastic")
    run.start()
    run.send(DnnFailed("b", "oom", "too large"))
    run.send(GroupLeft("b"))
    run.epoch("a", start_s=0.1)
    assert run.send(SuspendRequested("walltime")) == []  # a leaves already
    assert run.leave("a") == [Finish("suspended")]
    assert run.ensemble.state.reserved == {}
    left = run.ensemble.resume_state()
    again = drive(
        {"a": 8, "b": 8}, (4,), rates=dict.fromkeys("ab", linear(1.0)), paradigm="elastic", resume=left
    )
    assert slots_of(again.start()) == {"a": (0, 1, 2, 3)}


def test_a_resumed_dnn_goes_on_inside_its_own_pass(drive: Drive) -> None:
    run = drive({"a": 4, "b": 4}, (2,), paradigm="elastic")
    run.start()
    run.epoch("a")
    assert run.send(SuspendRequested("walltime")) == [SuspendGroups(("a", "b"))]
    for name, position in (("a", Position(1, 30)), ("b", Position(0, 60))):
        run.save(name, position)
        run.send(GroupLeft(name))
    left: ResumeState = run.ensemble.resume_state()
    again = drive({"a": 4, "b": 4}, (2,), paradigm="elastic", resume=left)
    starts = {
        i.plan.groups[0].dnn_id: i.plan.start[i.plan.groups[0].dnn_id]
        for i in again.start()
        if isinstance(i, StartGroup)
    }
    assert starts == {"a": Position(1, 30), "b": Position(0, 60)}


def test_no_dnn_gets_more_slots_than_its_step_has_samples_or_the_limit_allows(drive: Drive) -> None:
    run = drive({"a": 8}, (4,), rates={"a": linear(1.0)}, batch_sizes={"a": 3}, paradigm="elastic")
    assert len(slots_of(run.start())["a"]) == 3
    run = drive({"a": 8}, (4,), rates={"a": linear(1.0)}, max_slots_per_dnn=2, paradigm="elastic")
    assert len(slots_of(run.start())["a"]) == 2

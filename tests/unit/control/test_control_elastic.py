"""Elastic: DNNs train at their own pace, and change their slots only at the end of their own passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hpcbal.control.progress import ResumeState
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
from hpcbal.events.members import StopRule

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


@pytest.mark.parametrize(("held", "grows"), [((0, 1), False), ((0, 1, 2, 3), True)])
def test_a_change_costs_less_where_all_ranks_hold_the_network(
    drive: Drive, held: tuple[int, ...], grows: bool
) -> None:
    """The first start builds it, which takes long; the second one does not."""
    run = drive({"a": 8, "b": 8}, (4,), rates=dict.fromkeys("ab", linear(1.0)), paradigm="elastic")
    run.start()
    state = run.ensemble.state
    run.epoch("a", start_s=1e6)
    state.groups["a"].builds = False  # as after a change of its slots
    run.epoch("a", start_s=0.1)
    run.send(DnnFailed("b", "oom", "too large"))
    run.send(GroupLeft("b"))
    state.built["a"] = held
    assert isinstance(run.epoch("a")[0], LeaveRound) == grows


@pytest.mark.parametrize(("build_s", "second"), [(0.0, "b"), (0.5, "b"), (2.0, "c")])
def test_a_dnn_starts_where_its_network_is_built_if_that_takes_longer_than_others_are_longer(
    drive: Drive, build_s: float, second: str
) -> None:
    """When a has ended, b needs a second more than c, whose network is there; passes take a second."""
    rates = dict.fromkeys("abc", linear(100.0, most=1))  # passes have 100 samples
    run = drive({"a": 9, "b": 3, "c": 2}, (1,), rates=rates, paradigm="elastic", checkpoint_every_pass=False)
    assert slots_of(run.start()) == {"a": (0,)}
    state = run.ensemble.state
    state.built["c"], state.start_s["c", True] = (0,), build_s
    for _ in range(9):
        run.epoch("a")
    assert slots_of(run.leave("a")) == {second: (0,)}


def test_slots_that_a_dnn_goes_on_without_are_given_to_others(drive: Drive) -> None:
    rates = dict.fromkeys("abc", linear(100.0))
    resume = ResumeState(left_out={"a": (1, 2, 3)})
    run = drive({"a": 12, "b": 2, "c": 2}, (4,), rates=rates, paradigm="elastic", resume=resume)
    slots = slots_of(run.start())
    assert slots["a"] == (0,)
    assert {name: len(each) for name, each in slots.items()} == {"a": 1, "b": 1, "c": 1}


def test_no_dnn_gives_slots_back_before_its_end(drive: Drive) -> None:
    """a has trained more epochs than b, which is expected to train as many, so b needs more slots now."""
    rates = dict.fromkeys("ab", linear(1.0))
    run = drive(
        dict.fromkeys("ab", UNKNOWN), (4,), rates=rates, paradigm="elastic", checkpoint_every_pass=False
    )
    assert {name: len(slots) for name, slots in slots_of(run.start()).items()} == {"a": 2, "b": 2}
    for pass_index in range(1, 5):
        assert run.epoch("a", seconds=100.0) == [NextPass(("a",), pass_index)]


def test_more_dnns_than_slots_train_one_after_the_other(drive: Drive) -> None:
    rates = {"a": linear(2.0, most=1), "b": linear(1.0, most=1)}
    run = drive({"a": 2, "b": 2}, (1,), rates=rates, paradigm="elastic", checkpoint_every_pass=False)
    assert slots_of(run.start()) == {"b": (0,)}  # it needs longer
    run.epoch("b", seconds=100.0)
    run.epoch("b", seconds=100.0)
    assert slots_of(run.leave("b")) == {"a": (0,)}


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

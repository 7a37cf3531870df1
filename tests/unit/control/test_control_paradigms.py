"""Paradigms: which DNNs train next, and when, one event after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from hpcbal.cluster.layout import Cluster
from hpcbal.control.ensemble import Ensemble
from hpcbal.control.progress import ScheduleSettings
from hpcbal.control.state import ControlError
from hpcbal.events.ensemble import (
    DnnFailed,
    Event,
    Finish,
    GroupLeft,
    GroupPlan,
    LeaveRound,
    NextPass,
    StartGroup,
    StartProfiling,
    StartRound,
    StopStream,
    SuspendRequested,
)
from hpcbal.events.history import Position
from hpcbal.policies.folds import random_order
from hpcbal.policies.rates import RateTable

Drive = Callable[..., Any]

EQUAL = {name: [100.0, 100.0, 100.0, 100.0] for name in "abcd"}  # no DNN gains from a second slot


def groups_of(instructions: Sequence[Any]) -> dict[str, tuple[int, ...]]:
    """Slots by DNN of the round that starts."""
    (start,) = [instruction for instruction in instructions if isinstance(instruction, StartRound)]
    return {group.dnn_id: group.slots for group in start.plan.groups}


def alone_of(instructions: Sequence[Any]) -> dict[str, int]:
    """Slot by DNN, for DNNs that start alone."""
    plans = [instruction.plan for instruction in instructions if isinstance(instruction, StartGroup)]
    return {group.dnn_id: group.slots[0] for plan in plans for group in plan.groups}


# ---- local -----------------------------------------------------------------------------------------


def test_local_fills_a_released_slot_at_once_and_moves_no_dnn(drive: Drive) -> None:
    run = drive({"a": 9, "b": 1, "c": 9}, (2,), EQUAL, paradigm="local")
    assert groups_of(run.start()) == {"a": (0,), "b": (1,)}
    instructions = run.epoch("a", "b")
    assert instructions == [LeaveRound("b", "converged", "1 of at most 1 epochs"), LeaveRound("a", "regroup")]
    instructions = run.leave("b", "a")
    assert isinstance(instructions[0], StopStream)
    assert groups_of(instructions) == {"a": (0,), "c": (1,)}
    assert instructions[1].plan.first_pass == 1


def test_local_lets_the_others_continue_if_no_dnn_waits(drive: Drive) -> None:
    run = drive({"a": 9, "b": 1}, (2,), EQUAL, paradigm="local")
    run.start()
    assert run.epoch("a", "b") == [
        LeaveRound("b", "converged", "1 of at most 1 epochs"),
        NextPass(("a",), 1, ("a",)),
    ]


def test_local_fills_what_a_failed_dnn_releases(drive: Drive) -> None:
    run = drive({"a": 9, "b": 9, "c": 9}, (2,), EQUAL, paradigm="local")
    run.start()
    run.epoch("a")
    run.send(failure("b"))
    run.send(left("b"))
    assert groups_of(run.leave("a")) == {"a": (0,), "c": (1,)}


def test_local_gives_newcomers_only_slots_that_are_free_on_any_node(drive: Drive) -> None:
    rates = {"a": [100.0], "b": [100.0], "c": [100.0], "wide": [50.0, 100.0]}
    run = drive({"a": 9, "b": 1, "c": 1, "wide": 9}, (1, 2), rates, paradigm="local")
    first = groups_of(run.start())
    run.epoch("a", "b", "c")
    second = groups_of(run.leave("b", "c", "a"))
    assert second["a"] == first["a"]
    assert set(second["wide"]) == {0, 1, 2} - set(first["a"])


def test_local_keeps_its_slots_over_a_suspension_between_two_rounds(drive: Drive) -> None:
    run = drive({"a": 9, "b": 1, "c": 9}, (2,), EQUAL, paradigm="local")
    run.start()
    run.epoch("a", "b")
    run.send(SuspendRequested("walltime"))
    assert run.leave("b", "a")[-1] == Finish("suspended")
    again = drive({"a": 9, "b": 1, "c": 9}, (2,), EQUAL, run.ensemble.resume_state(), paradigm="local")
    assert groups_of(again.start()) == {"a": (0,), "c": (1,)}


# ---- global ----------------------------------------------------------------------------------------


def test_global_moves_no_dnn_that_can_stay_at_no_cost(drive: Drive) -> None:
    run = drive({"a": 1, "b": 1, "c": 9, "d": 9, "e": 9}, (2, 2), {**EQUAL, "e": EQUAL["a"]})
    assert groups_of(run.start()) == {"a": (0,), "b": (1,), "c": (2,), "d": (3,)}
    run.epoch("a", "b", "c", "d")
    assert groups_of(run.leave("a", "b", "c", "d")) == {"c": (2,), "d": (3,), "e": (0,)}


def test_global_moves_a_dnn_where_staying_would_split_another(drive: Drive) -> None:
    rates = {"a": [100.0], "b": [100.0], "c": [100.0], "d": [100.0], "wide": [50.0, 100.0]}
    run = drive({"a": 1, "b": 9, "c": 9, "d": 1, "wide": 9}, (2, 2), rates, max_slots_per_dnn=2)
    assert groups_of(run.start()) == {"a": (0,), "b": (1,), "c": (2,), "d": (3,)}
    run.epoch("a", "b", "c", "d")
    second = groups_of(run.leave("a", "b", "c", "d"))  # slots 0 and 3 are free, on two nodes
    assert second["wide"] in ((0, 1), (2, 3))
    assert second["b"] == (1,) or second["c"] == (2,)


def test_global_returns_to_its_slots_after_a_suspension_between_two_rounds(drive: Drive) -> None:
    epochs, rates = {"a": 1, "b": 1, "c": 9, "d": 9, "e": 9}, {**EQUAL, "e": EQUAL["a"]}
    run = drive(epochs, (2, 2), rates)
    run.start()
    run.epoch("a", "b", "c", "d")
    run.send(SuspendRequested("walltime"))
    assert run.leave("a", "b", "c", "d")[-1] == Finish("suspended")
    again = drive(epochs, (2, 2), rates, run.ensemble.resume_state())
    assert groups_of(again.start()) == {"c": (2,), "d": (3,), "e": (0,)}


# ---- homogeneous -----------------------------------------------------------------------------------


def test_homogeneous_waits_for_the_last_of_a_subset(drive: Drive) -> None:
    names = {"a": 2, "b": 1, "c": 1}
    first, second, third = random_order("abc", 3)
    run = drive(names, (2,), EQUAL, paradigm="homogeneous", seed=3)
    assert groups_of(run.start()) == {first: (0,), second: (1,)}
    instructions: Sequence[Any] = ()
    while not any(isinstance(instruction, StartRound) for instruction in instructions):
        instructions = finish_pass(run)
    assert groups_of(instructions) == {third: (0,)}


def test_homogeneous_gives_one_slot_each_even_when_some_stay_idle(drive: Drive) -> None:
    run = drive({"a": 1}, (4,), {"a": [10.0, 20.0, 30.0, 40.0]}, paradigm="homogeneous")
    assert groups_of(run.start()) == {"a": (0,)}


# ---- independent -----------------------------------------------------------------------------------


def test_independent_dnns_do_not_wait_for_each_other(drive: Drive) -> None:
    run = drive({"a": 9, "b": 9}, (2,), EQUAL, paradigm="independent")
    assert set(alone_of(run.start())) == {"a", "b"}
    assert run.epoch("a") == [NextPass(("a",), 1, ("a",))]
    assert run.epoch("a") == [NextPass(("a",), 2, ("a",))]
    assert run.epoch("b") == [NextPass(("b",), 1, ("b",))]


def test_independent_fills_a_slot_as_soon_as_its_dnn_has_left(drive: Drive) -> None:
    first, second, third = random_order("abc", 0)
    run = drive({"a": 1, "b": 1, "c": 1}, (2,), EQUAL, paradigm="independent")
    assert alone_of(run.start()) == {first: 0, second: 1}
    assert run.epoch(second) == [LeaveRound(second, "converged", "1 of at most 1 epochs")]
    assert alone_of(run.leave(second)) == {third: 1}
    run.epoch(third)
    assert run.leave(third) == []
    run.epoch(first)
    assert run.leave(first) == [Finish("done")]


def test_independent_streams_begin_with_the_first_pass_and_continue_with_the_next(drive: Drive) -> None:
    run = drive({"a": 9, "b": 9}, (1,), EQUAL, paradigm="independent")
    (name,) = alone_of(run.start())
    run.epoch(name)
    run.send(SuspendRequested("walltime"))
    run.save(name, Position(1))
    assert run.send(left(name)) == [Finish("suspended")]
    again = drive({"a": 9, "b": 9}, (1,), EQUAL, run.ensemble.resume_state(), paradigm="independent")
    (instruction,) = again.start()
    assert instruction.plan.groups == (GroupPlan(name, (0,)),)  # the DNN that was started comes first
    assert instruction.plan.start[name] == Position(1)
    assert instruction.plan.epochs[name] == 1


def test_independent_starts_the_longest_dnn_first_if_all_rates_are_known(drive: Drive) -> None:
    epochs = {"a": 2, "b": 2, "c": 6, "d": 9}
    rates = {"a": [10.0], "b": [5.0], "c": [10.0], "d": [90.0]}  # 0.2, 0.4, 0.6 and 0.1 of a pass at 1/s
    run = drive(epochs, (1,), rates, paradigm="independent")
    assert list(alone_of(run.start())) == ["c"]
    for _ in range(3):
        run.epoch("c")
    run.send(SuspendRequested("walltime"))
    run.save("c", Position(3))
    run.send(left("c"))
    run = drive(epochs, (1,), rates, run.ensemble.resume_state(), paradigm="independent")
    order = [*alone_of(run.start())]
    for num_left in (3, 2, 2):
        for _ in range(num_left):
            run.epoch(order[-1])
        order += alone_of(run.leave(order[-1]))
    assert order == ["c", "b", "a", "d"]  # as without the stop: "b" now needs longer than "c"
    unknown = drive(epochs, (4,), {"a": [10.0]}, paradigm="independent")
    assert tuple(alone_of(unknown.start())) == random_order("abcd", 0)


def test_a_failed_independent_dnn_frees_its_slot(drive: Drive) -> None:
    run = drive({"a": 1, "b": 1}, (1,), EQUAL, paradigm="independent")
    (first,) = alone_of(run.start())
    run.send(failure(first))
    (second,) = alone_of(run.send(left(first)))
    run.epoch(second)
    assert run.leave(second) == [Finish("failed-dnns")]


# ---- all -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("paradigm", ["homogeneous", "independent"])
def test_paradigms_that_decide_without_rates_measure_none(drive: Drive, paradigm: str) -> None:
    run = drive({"a": 1, "b": 1}, (2,), {}, paradigm=paradigm, profile=True)
    assert not any(isinstance(instruction, StartProfiling) for instruction in run.start())


def test_an_unknown_paradigm_is_refused() -> None:
    settings = ScheduleSettings(num_positions=1, paradigm="globl")
    with pytest.raises(ControlError, match=r"got 'globl', allowed: global, local, homogeneous, elastic"):
        Ensemble([], Cluster.uniform(1, 1), settings, RateTable({}, 1))


def test_a_random_order_does_not_depend_on_who_else_is_left() -> None:
    names = [f"dnn{i}" for i in range(30)]
    whole = random_order(names, 7)
    assert sorted(whole) == sorted(names)
    assert random_order(list(reversed(names)), 7) == whole
    assert random_order(whole[10:], 7) == whole[10:]
    assert random_order(names, 8) != whole


def finish_pass(run: Any) -> list[Any]:
    """All groups finish their pass, and leave if asked to; returns the instructions after the last one."""
    instructions = run.epoch(*run.ensemble.state.groups)
    leaving = [t.dnn_id for t in instructions if isinstance(t, LeaveRound)]
    return run.leave(*leaving) if leaving else instructions


def failure(dnn_id: str) -> Event:
    return DnnFailed(dnn_id, "nan", "loss is NaN")


def left(dnn_id: str) -> Event:
    return GroupLeft(dnn_id)

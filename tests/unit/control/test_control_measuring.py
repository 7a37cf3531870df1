"""Where no DNN may have more than one slot, rates are measured in rounds of one pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hpcbal.events.ensemble import (
    GroupLeft,
    LeaveRound,
    RateMeasured,
    StartProfiling,
    StartRound,
    StopStream,
    SuspendRequested,
)
from hpcbal.events.history import Position

Drive = Callable[..., Any]


def round_in(instructions: list[Any]) -> Any:
    (plan,) = [each.plan for each in instructions if isinstance(each, StartRound)]
    return plan


def slots_of(plan: Any) -> dict[str, tuple[int, ...]]:
    return {group.dnn_id: group.slots for group in plan.groups}


def measure_and_leave(driver: Any, plan: Any, rates: dict[str, float]) -> list[Any]:
    """All groups of a round of one pass report their rate and the pass, and leave."""
    names = [group.dnn_id for group in plan.groups]
    for name in names:
        if name in rates:
            assert driver.send(RateMeasured(name, 1, rates[name])) == []
    leaving = driver.epoch(*names)
    assert [each.dnn_id for each in leaving if isinstance(each, LeaveRound)] == names
    return driver.leave(*names)


def test_rounds_of_one_pass_measure_what_they_train(drive: Drive) -> None:
    """Nothing is profiled; DNNs without a rate come first, in the order of the file."""
    driver = drive(dict.fromkeys("abc", 5), (2,), {}, max_slots_per_dnn=1, profile=True)
    first = round_in(driver.start())
    assert slots_of(first) == {"a": (0,), "b": (1,)}
    assert (first.first_pass, first.last_pass, first.predicted_rate_samples_per_s) == (0, 0, {})
    assert first.measures == ("a", "b")
    second = round_in(measure_and_leave(driver, first, {"a": 100.0, "b": 50.0}))
    assert slots_of(second) == {"c": (1,), "a": (0,)}  # a stays where its network is
    assert (second.last_pass, dict(second.predicted_rate_samples_per_s)) == (1, {"a": 100.0})
    assert second.measures == ("c",)
    third = round_in(measure_and_leave(driver, second, {"c": 95.0}))
    assert (third.last_pass, third.measures) == (None, ())  # all rates are known: the paradigm decides
    assert slots_of(third) == {"a": (0,), "c": (1,)}
    assert driver.ensemble.rates.measured == {"a": {1: 100.0}, "b": {1: 50.0}, "c": {1: 95.0}}
    assert driver.ensemble.state.dnns["a"].epochs == 2


def test_a_measuring_round_that_was_stopped_inside_its_pass_continues(drive: Drive) -> None:
    driver = drive(dict.fromkeys("abc", 5), (2,), {}, max_slots_per_dnn=1, profile=True)
    driver.start()
    driver.send(SuspendRequested("walltime"))
    for name in "ab":
        driver.save(name, Position(0, 40))
        driver.send(GroupLeft(name))
    resume = driver.ensemble.resume_state()
    again = drive(dict.fromkeys("abc", 5), (2,), {}, resume=resume, max_slots_per_dnn=1, profile=True)
    plan = round_in(again.start())
    assert slots_of(plan) == {"a": (0,), "b": (1,)}
    assert (plan.last_pass, dict(plan.start)) == (0, dict.fromkeys("ab", Position(0, 40)))
    after = round_in(measure_and_leave(again, plan, {"a": 100.0, "b": 50.0}))
    assert set(slots_of(after)) == {"a", "c"}


@pytest.mark.parametrize("num_slots", [2, 3])
def test_a_dnn_that_was_added_to_an_interrupted_round_is_measured_after_its_pass(
    drive: Drive, num_slots: int
) -> None:
    """With three slots, one is idle while the interrupted round continues."""
    rates = {"a": [100.0], "b": [95.0]}
    driver = drive(dict.fromkeys("ab", 5), (num_slots,), rates, max_slots_per_dnn=1, profile=True)
    driver.start()
    driver.send(SuspendRequested("walltime"))
    for name in "ab":
        driver.save(name, Position(0, 40))
        driver.send(GroupLeft(name))
    resume = driver.ensemble.resume_state()
    again = drive(
        dict.fromkeys("abc", 5), (num_slots,), rates, resume=resume, max_slots_per_dnn=1, profile=True
    )
    plan = round_in(again.start())
    assert set(slots_of(plan)) == {"a", "b"}
    assert again.ensemble.idle_slots() is None
    again.epoch("a", "b")
    after = round_in(again.leave("a", "b"))
    assert after.last_pass == after.first_pass
    assert "c" in slots_of(after)


def test_a_rate_that_was_not_measured_costs_another_pass(drive: Drive) -> None:
    driver = drive(dict.fromkeys("ab", 5), (2,), {}, max_slots_per_dnn=1, profile=True)
    again = round_in(measure_and_leave(driver, round_in(driver.start()), {"a": 100.0}))
    assert (set(slots_of(again)), again.last_pass) == ({"a", "b"}, 1)


def test_on_a_single_slot_the_first_round_goes_on(drive: Drive) -> None:
    driver = drive(dict.fromkeys("ab", 2), (1,), {}, profile=True)
    plan = round_in(driver.start())
    assert (slots_of(plan), plan.last_pass) == ({"a": (0,)}, None)
    driver.send(RateMeasured("a", 1, 10.0))
    driver.epoch("a")
    driver.epoch("a")
    assert slots_of(round_in(driver.leave("a"))) == {"b": (0,)}


@pytest.mark.parametrize(
    "settings", [{"max_slots_per_dnn": 2}, {"max_slots_per_dnn": 1, "profile_only": True}]
)
def test_groups_and_profiling_runs_are_measured_in_waves(drive: Drive, settings: dict[str, Any]) -> None:
    driver = drive(dict.fromkeys("ab", 5), (2,), {}, profile=True, **settings)
    (wave,) = driver.start()
    assert isinstance(wave, StartProfiling)


def test_a_profiled_dnn_trains_where_its_network_is_built(drive: Drive) -> None:
    """All placements of single slots on one node are equally good."""
    driver = drive(dict.fromkeys("abcd", 5), (2,), {}, profile=True, max_profile_slots=1)
    rates = {"a": 50.0, "b": 10.0, "c": 11.0, "d": 49.0}
    instructions, built = driver.start(), {}
    while isinstance(instructions[0], StartProfiling):
        for group in instructions[0].groups:
            built[group.dnn_id] = group.slots
            driver.send(RateMeasured(group.dnn_id, 1, rates[group.dnn_id]))
        for group in instructions[0].groups:
            instructions = driver.send(GroupLeft(group.dnn_id))
    assert built == {"a": (0,), "b": (1,), "c": (0,), "d": (1,)}
    plan = round_in(instructions)
    assert slots_of(plan) == {"a": (0,), "d": (1,)}
    for _ in range(5):
        instructions = driver.epoch("a", "d")
    after = round_in(driver.leave("a", "d"))
    assert slots_of(after) == {"c": (0,), "b": (1,)}


def test_a_dnn_alone_gets_the_slot_where_its_network_is_built(drive: Drive) -> None:
    driver = drive(dict.fromkeys("ab", 5), (2,), paradigm="independent")
    driver.ensemble.state.built.update(a=(1,), b=(0,))
    plans = [each.plan for each in driver.start()]
    assert {name: slots for plan in plans for name, slots in slots_of(plan).items()} == {"a": (1,), "b": (0,)}


def test_a_stream_ends_with_each_measuring_round(drive: Drive) -> None:
    driver = drive(dict.fromkeys("ab", 5), (2,), {}, max_slots_per_dnn=1, profile=True)
    ended = measure_and_leave(driver, round_in(driver.start()), {"a": 100.0, "b": 99.0})
    assert ended[0] == StopStream(0, continues=False)

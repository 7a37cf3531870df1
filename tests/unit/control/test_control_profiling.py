"""Profiling waves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from hpcbal.cluster.layout import Cluster, Node
from hpcbal.control.profiling import ProfileJob, missing_jobs, next_wave, place_wave
from hpcbal.control.progress import ScheduleSettings
from hpcbal.control.state import ControlError
from hpcbal.errors import InputError
from hpcbal.events.ensemble import (
    DnnFailed,
    Finish,
    GroupLeft,
    PreprocessingMeasured,
    RateMeasured,
    StartProfiling,
    StartRound,
    SuspendRequested,
)
from hpcbal.events.members import DnnAdded, DnnSpec, StopRule
from hpcbal.policies.rates import RateTable

Drive = Callable[..., Any]


def jobs(*sizes: tuple[str, int]) -> list[ProfileJob]:
    return [ProfileJob(dnn_id, m) for dnn_id, m in sizes]


def measure(driver: Any, started: StartProfiling, rate: Callable[[str, int], float]) -> list[Any]:
    """Answer a whole wave; returns the instructions that follow."""
    instructions: list[Any] = []
    for group in started.groups:
        m = len(group.slots)
        assert driver.send(RateMeasured(group.dnn_id, m, rate(group.dnn_id, m))) == []
        instructions = driver.send(GroupLeft(group.dnn_id))
    return instructions


def test_a_wave_packs_the_largest_first_and_each_dnn_once() -> None:
    wave = next_wave(jobs(("a", 1), ("a", 2), ("b", 1), ("b", 3), ("c", 1)), 4)
    assert wave == (ProfileJob("b", 3), ProfileJob("a", 1))


def test_waves_take_equal_jobs_in_order() -> None:
    assert next_wave(jobs(("a", 1), ("a", 1), ("b", 1)), 2) == (ProfileJob("a", 1), ProfileJob("b", 1))
    assert next_wave(jobs(("c", 1), ("a", 1), ("b", 1)), 2) == (ProfileJob("c", 1), ProfileJob("a", 1))


def test_a_profiled_group_stays_on_one_node() -> None:
    groups = place_wave(jobs(("a", 3), ("b", 2), ("c", 1)), Cluster((Node("x", 3), Node("y", 3))))
    slots = {group.dnn_id: set(group.slots) for group in groups}
    assert slots["a"] in ({0, 1, 2}, {3, 4, 5})
    assert len(slots["b"] | slots["c"]) == 3
    assert not slots["a"] & (slots["b"] | slots["c"])


def test_single_slot_rates_come_first_then_all_counts_up_to_m_t() -> None:
    settings = ScheduleSettings(num_positions=10)
    cluster = Cluster.uniform(2, 2)
    rates = RateTable({"a": {1: 100.0}}, 2)
    assert missing_jobs(["a", "b"], ["a", "b"], rates, cluster, settings) == (ProfileJob("b", 1),)
    rates = rates.with_measurement("b", 1, 50.0).with_measurement("a", 3, 250.0)
    todo = missing_jobs(["a", "b"], ["a", "b"], rates, cluster, settings)
    assert todo == tuple(jobs(("a", 2), ("a", 4), ("b", 2), ("b", 3), ("b", 4)))


@pytest.mark.parametrize("bound", ["max_profile_slots", "max_slots_per_dnn"])
def test_bounds_cut_the_counts_that_are_profiled(bound: str) -> None:
    settings = ScheduleSettings(num_positions=10, **{bound: 2})  # type: ignore[arg-type]
    rates = RateTable({"a": {1: 100.0}}, 4)
    assert missing_jobs(["a"], ["a"], rates, Cluster.uniform(1, 4), settings) == (ProfileJob("a", 2),)


def test_m_t_counts_dnns_that_have_dropped_out() -> None:
    settings = ScheduleSettings(num_positions=10)
    rates = RateTable({"fast": {1: 400.0}, "slow": {1: 100.0}}, 1)  # M_b = 2, M_a = 4
    alone = missing_jobs(["slow"], ["slow"], rates, Cluster.uniform(8, 1), settings)
    assert [job.num_slots for job in alone] == [2]
    both = missing_jobs(["slow"], ["fast", "slow"], rates, Cluster.uniform(8, 1), settings)
    assert [job.num_slots for job in both] == [2, 3, 4]


@pytest.mark.parametrize(("paradigm", "is_measured"), [("elastic", False), ("global", True)])
def test_without_rounds_a_dnn_that_joins_amid_measuring_trains_unmeasured(
    drive: Drive, paradigm: str, is_measured: bool
) -> None:
    driver = drive({"a": 1}, (2,), rates={}, profile=True, paradigm=paradigm)
    (instruction,) = driver.start()
    driver.send(DnnAdded(DnnSpec("large", 1000, StopRule(max_epochs=1)), {}))
    names = set()
    while isinstance(instruction, StartProfiling):
        names |= {group.dnn_id for group in instruction.groups}
        instruction, *others = measure(driver, instruction, lambda _, m: 100.0 * m)
    assert ("large" in names) == is_measured
    if not is_measured:  # its batches do not fit in the ring, and it needs none
        assert {i.plan.groups[0].dnn_id for i in (instruction, *others)} == {"a", "large"}


def test_profiling_measures_each_rate_once_and_ends_in_the_first_round(drive: Drive) -> None:
    driver = drive({"a": 1, "b": 1, "c": 1}, (2,), rates={"b": [90.0]}, profile=True)
    (instruction,) = driver.start()
    measured = []
    while isinstance(instruction, StartProfiling):
        measured += [(group.dnn_id, len(group.slots)) for group in instruction.groups]
        (instruction,) = measure(driver, instruction, lambda dnn_id, m: 100.0 * m)
    assert sorted(measured) == [("a", 1), ("a", 2), ("b", 2), ("c", 1), ("c", 2)]
    assert isinstance(instruction, StartRound)
    assert driver.ensemble.rates.rate("b", 1) == 90.0
    assert driver.ensemble.rates.rate("c", 2) == 200.0


def test_known_rates_skip_profiling(drive: Drive) -> None:
    (instruction,) = drive({"a": 1}, profile=True).start()
    assert isinstance(instruction, StartRound)


def test_unknown_rates_are_an_error_when_profiling_is_off(drive: Drive) -> None:
    with pytest.raises(InputError, match="rates of b on 1 slot are not known"):
        drive({"a": 1, "b": 1}, rates={"a": [1.0]}).start()


def test_a_dnn_that_fails_in_profiling_loses_its_other_runs(drive: Drive) -> None:
    driver = drive({"a": 1, "b": 1}, (2,), rates={}, profile=True)
    (instruction,) = driver.start()
    driver.send(DnnFailed("a", "oom", "no memory"))
    assert driver.state_of("a") == "failed"
    assert driver.send(DnnFailed("a", "error", "said by another rank")) == []
    assert driver.ensemble.state.dnns["a"].cause == "oom"
    assert driver.send(RateMeasured("a", 1, 10.0)) == []  # was under way
    driver.send(GroupLeft("a"))
    driver.send(RateMeasured("b", 1, 10.0))
    (instruction,) = driver.send(GroupLeft("b"))
    assert isinstance(instruction, StartProfiling)
    assert [group.dnn_id for group in instruction.groups] == ["b"]
    (instruction,) = measure(driver, instruction, lambda _, m: 10.0 * m)
    assert [group.dnn_id for group in instruction.plan.groups] == ["b"]


def test_all_failing_in_profiling_finishes(drive: Drive) -> None:
    driver = drive({"a": 1}, rates={}, profile=True)
    driver.start()
    driver.send(DnnFailed("a", "error", "bug"))
    assert driver.send(GroupLeft("a")) == [Finish("failed-dnns")]


def test_suspension_waits_for_the_running_wave_and_keeps_its_rates(drive: Drive) -> None:
    driver = drive({"a": 1, "b": 1}, (2,), rates={"b": [10.0, 11.0]}, profile=True)
    driver.start()
    assert driver.send(SuspendRequested("walltime")) == []
    driver.send(RateMeasured("a", 1, 12.0))
    assert driver.ensemble.rates.rate("a", 1) == 12.0
    assert driver.send(GroupLeft("a")) == [Finish("suspended")]
    rates = {"a": [12.0, 13.0], "b": [10.0]}
    again = drive({"a": 1, "b": 1}, (2,), rates=rates, resume=driver.ensemble.resume_state(), profile=True)
    (instruction,) = again.start()
    assert [group.dnn_id for group in instruction.groups] == ["b"]


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (GroupLeft("a"), "RateMeasured or DnnFailed before GroupLeft"),
        (RateMeasured("a", 2, 1.0), "a rate > 0 on 1 slots"),
        (RateMeasured("a", 1, 0.0), "a rate > 0 on 1 slots"),
        (RateMeasured("a", 1, math.inf), "a rate > 0 on 1 slots"),
        (RateMeasured("b", 1, 1.0), "in a profiling wave or a round"),
        (PreprocessingMeasured(math.nan), "a rate > 0"),
    ],
)
def test_wrong_answers_to_a_wave_are_refused(drive: Drive, event: Any, message: str) -> None:
    driver = drive({"a": 1, "b": 1}, (2,), rates={"b": [1.0, 2.0]}, profile=True)
    driver.start()
    with pytest.raises(ControlError, match=message):
        driver.send(event)


def test_a_rate_is_measured_once_per_wave(drive: Drive) -> None:
    driver = drive({"a": 1}, (1,), rates={}, profile=True)
    driver.start()
    driver.send(RateMeasured("a", 1, 1.0))
    with pytest.raises(ControlError, match="one RateMeasured"):
        driver.send(RateMeasured("a", 1, 2.0))


def test_a_run_that_only_measures_is_over_when_all_rates_are_known(drive: Drive) -> None:
    driver = drive({"a": 2, "b": 2}, rates={}, profile=True, profile_only=True, max_profile_slots=1)
    (wave,) = driver.start()
    assert measure(driver, wave, lambda dnn_id, m: 100.0) == [Finish("profiled")]
    assert driver.ensemble.outcome == "profiled"
    assert driver.ensemble.rates.rate("b", 1) == 100.0
    assert {driver.state_of("a"), driver.state_of("b")} == {"waiting"}


def test_a_run_that_only_measures_can_be_stopped_before(drive: Drive) -> None:
    driver = drive({"a": 2}, rates={}, profile=True, profile_only=True)
    (wave,) = driver.start()
    driver.send(SuspendRequested("asked to"))
    assert measure(driver, wave, lambda dnn_id, m: 100.0) == [Finish("suspended")]


def test_a_run_that_only_measures_trains_nothing_when_all_is_known(drive: Drive) -> None:
    assert drive({"a": 2}, profile=True, profile_only=True).start() == [Finish("profiled")]

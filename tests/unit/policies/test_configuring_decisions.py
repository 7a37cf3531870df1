"""Measurements, costs of changes, and decisions about them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.errors import PolicyError
from hpcbal.policies.configuring.changes import BlockAssignment, plan_changes
from hpcbal.policies.configuring.cost_model import Configuration, Machine
from hpcbal.policies.configuring.metrics import (
    Average,
    Metrics,
    ServerMetrics,
    TurnMetrics,
    estimate_machines,
)
from hpcbal.policies.configuring.trigger import MovingCost, Trigger, cost_of_moving

CONFIGURATION = Configuration.of_blocks([4, 4, 0, 0], [0, 0, 4, 0])
FREE = MovingCost(0.0, 0.0, 0.0)


def measured(turns: int, periods: int, speeds: tuple[float, float] = (1e-3, 1e-3)) -> Metrics:
    metrics = Metrics.of(4, warm_up=2)
    for number in range(turns):
        for i, speed in enumerate(speeds):
            slow = 50.0 if number < 2 else 1.0
            metrics = metrics.after_turn(i, TurnMetrics(100, 100 * speed * slow, 0.2, 1e6))
    for _ in range(periods):
        metrics = metrics.after_period(2, ServerMetrics(1e6, 1e-3))
    return metrics


def test_the_warm_up_is_left_out() -> None:
    averages = measured(turns=5, periods=0).executors[0]
    assert averages.fresh_turns == 3
    assert averages.seconds_per_sample.value == pytest.approx(1e-3)
    assert averages.communication_s.value == pytest.approx(0.2)


def test_averages_follow_a_change_of_speed() -> None:
    metrics = measured(turns=20, periods=0)
    for _ in range(36):
        metrics = metrics.after_turn(0, TurnMetrics(100, 0.3, 0.2, 1e6))
    assert metrics.executors[0].seconds_per_sample.value == pytest.approx(3e-3, rel=0.02)


def test_equal_machines_that_chance_makes_differ_count_as_equal_and_unlike_ones_do_not() -> None:
    rng = np.random.default_rng(3)
    metrics = Metrics.of(12, warm_up=0)
    for _ in range(8):
        for worker in range(12):
            compute_s = 0.1 * (1 if worker < 8 else 3) * rng.uniform(0.7, 1.3)
            metrics = metrics.after_turn(worker, TurnMetrics(100, compute_s, 0.2, 1e6))
    speeds = [each.seconds_per_sample for each in estimate_machines(metrics, [1e8] * 12, kinds=[0] * 12)]
    assert len(set(speeds[:8])) == len(set(speeds[8:])) == 1
    assert speeds[8] / speeds[0] == pytest.approx(3, rel=0.2)


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=9))
def test_at_first_an_average_and_its_error_are_those_of_a_sample(values: list[float]) -> None:
    average = Average()
    for value in values:
        average = average.after(value, 0.1)
    assert average.value == pytest.approx(np.mean(values))
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    assert average.error(0.1) == pytest.approx(error, abs=1e-9)


def test_after_a_change_speeds_stay_known_and_freshness_starts_again() -> None:
    metrics = measured(turns=9, periods=9).after_change()
    assert metrics.executors[0].fresh_turns == 0
    assert metrics.executors[0].communication_s.number == 0
    assert metrics.executors[0].seconds_per_sample.value == pytest.approx(1e-3)
    assert metrics.executors[2].service_s_per_byte.value == pytest.approx(1e-9)


def test_a_server_counts_as_fast_as_the_workers_of_its_kind() -> None:
    metrics = measured(turns=9, periods=9, speeds=(1e-3, 4e-3))
    machines = estimate_machines(metrics, [1e8] * 4, kinds=["fast", "slow", "slow", "other"])
    assert [machine.seconds_per_sample for machine in machines] == pytest.approx([1e-3, 4e-3, 4e-3, 2.5e-3])
    assert all(machine.service_s_per_byte == pytest.approx(1e-9) for machine in machines)


def test_machines_that_measure_nearly_the_same_become_equal() -> None:
    metrics = measured(turns=9, periods=9, speeds=(1.00e-3, 1.03e-3))
    machines = estimate_machines(metrics, [1e8, 1.01e8, 1e8, 1e8], kinds=[0] * 4)
    assert len(set(machines)) == 1
    assert machines[0].seconds_per_sample == pytest.approx(1.015e-3)


def test_machines_cannot_be_estimated_before_a_worker_has_reported() -> None:
    with pytest.raises(PolicyError, match="wait for more turns"):
        estimate_machines(Metrics.of(2), [1e8] * 2, kinds=[0, 0])


@pytest.mark.parametrize(("turns", "due"), [(7, True), (6, False)])
def test_every_worker_must_have_been_measured_often_enough(turns: int, due: bool) -> None:
    assert Trigger(min_turns=5).is_due(measured(turns, periods=0), CONFIGURATION) is due
    other = Configuration.of_blocks([4, 4, 1, 0], [0, 0, 0, 4])
    assert not Trigger(min_turns=5).is_due(measured(turns, periods=0), other)  # one has not worked yet


@pytest.mark.parametrize(("wanted_s", "change"), [(9.6, False), (9.5, True), (9.0, True), (10.5, False)])
def test_a_gain_below_five_percent_is_not_taken(wanted_s: float, change: bool) -> None:
    decision = Trigger().decide(10.0, wanted_s, FREE, epochs_left=100)
    assert decision.change is change
    assert decision.gain == pytest.approx(1 - wanted_s / 10)


@pytest.mark.parametrize(("epochs_left", "change"), [(3, False), (5, True)])
def test_the_change_must_pay_off_in_the_epochs_that_are_left(epochs_left: int, change: bool) -> None:
    moving = MovingCost(1e9, 100.0, lost_s=8.0)
    decision = Trigger().decide(10.0, 8.0, moving, epochs_left)
    assert decision.change is change
    assert decision.saved_s == pytest.approx(2.0 * epochs_left - 8.0)


def test_machines_that_leave_are_emptied_even_if_epochs_get_longer() -> None:
    decision = Trigger().decide(10.0, 20.0, MovingCost(1e9, 9.0, 9.0), 1, leaving=[3])
    assert decision.change
    assert decision.reason == "forced"


def test_a_change_takes_as_long_as_the_busiest_link() -> None:
    now = BlockAssignment(("worker", "worker", "server", "standby"), (0, 0, 0, 0, 1, 1, 1, 1), (2, 2, 2, 2))
    plan = plan_changes(now, Configuration.of_blocks([2, 2, 0, 4], [0, 0, 4, 0]))
    machines = [Machine(1.0, 1e6)] * 4
    cost = cost_of_moving(plan, machines, data_block_bytes=1e6, parameter_block_bytes=1e3, link_share=0.0)
    assert cost.bytes_moved == 4e6
    assert cost.change_s == pytest.approx(4.0)  # the new machine receives all four blocks
    assert cost.lost_s == pytest.approx(0.05 * 4.0)
    shared = cost_of_moving(plan, machines, 1e6, 1e3, link_share=0.5)
    assert shared.lost_s == pytest.approx(0.55 * 4.0)  # blocks take a worker's link from its turns


def test_blocks_that_leave_a_machine_are_of_all_tables() -> None:
    """Blocks 0 to 3 are of one table, and 4 to 15 of another: a quarter of what leaves is of the first."""
    now = BlockAssignment(("worker", "server", "standby"), (0,) * 4, (1,) * 16)
    (move,) = plan_changes(now, Configuration.of_blocks([4, 0, 0], [0, 8, 8])).moves
    assert len([block for block in move.blocks if block < 4]) == 2
    (move,) = plan_changes(now, Configuration.of_blocks([4, 0, 0], [0, 12, 4])).moves
    assert len([block for block in move.blocks if block < 4]) == 1


def test_a_change_takes_as_long_as_moves_that_wait_for_each_other() -> None:
    now = BlockAssignment(("worker", "server", "server"), (0,) * 6, (1, 1, 2, 2))
    plan = plan_changes(now, Configuration.of_blocks([3, 0, 3], [0, 4, 0]))
    cost = cost_of_moving(plan, [Machine(1.0, 1e6)] * 3, 1e6, 1e6, 0.5)
    assert cost.change_s == pytest.approx(2.0 + 3.0)


def test_a_plan_without_moves_costs_nothing() -> None:
    now = BlockAssignment(CONFIGURATION.roles, (0, 0, 0, 0, 1, 1, 1, 1), (2, 2, 2, 2))
    cost = cost_of_moving(plan_changes(now, CONFIGURATION), [Machine(1.0, 1.0)] * 4, 1.0, 1.0, 0.5)
    assert cost == FREE


@pytest.mark.parametrize("settings", [{"min_gain": 1.0}, {"min_gain": -0.1}, {"min_turns": 0}])
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(PolicyError, match="allowed"):
        Trigger(**settings)  # type: ignore[arg-type]

"""Measurements of a job's iterations, from the reports of its workers."""

from __future__ import annotations

import pytest

from hpcbal.paramserver.coscheduling.profiling import LONG_S, WINDOW, IterationMeter, IterationTimes, load_of
from hpcbal.paramserver.master.messages import TurnDone
from hpcbal.policies.grouping.groups import UNKNOWN_LOADING_S


def turn(step: int, compute_s: float, pull_s: float, push_s: float, num_bytes: int = 100) -> TurnDone:
    return TurnDone(step, (), 1, compute_s, pull_s, push_s, num_bytes)


def test_an_iteration_is_as_long_as_its_slowest_worker() -> None:
    meter = IterationMeter((1, 2), warm_up=0)
    assert not meter.note(1, turn(0, 1, 1, 1), 0.0)
    assert not meter.note(2, turn(0, 1, 1, 1), 1.0)  # the first one has no beginning
    assert meter.average is None
    assert not meter.note(2, turn(1, 2.0, 0.5, 0.25, 300), 3.0)
    assert meter.note(1, turn(1, 1.5, 1.0, 0.5, 100), 4.0)
    found = meter.average
    assert found is not None
    assert (found.compute_s, found.network_s, found.num_bytes) == (2.0, 1.5, 200)
    assert list(meter.periods) == [3.0]


def test_the_first_iterations_are_left_out() -> None:
    meter = IterationMeter((1,), warm_up=2)
    counted = [meter.note(1, turn(step, 1, 1, 1), float(step)) for step in range(6)]
    assert counted == [False, False, True, True, True, True]
    assert meter.num_measured == 4


def test_computing_is_averaged_and_of_the_network_the_least_counts() -> None:
    meter = IterationMeter((1,), warm_up=0)
    for step in range(WINDOW + 3):
        meter.note(1, turn(step, float(step), 1.0 + (step % 2), 0.5), float(step))
    found = meter.average
    assert found is not None
    assert found.compute_s == pytest.approx(sum(range(3, WINDOW + 3)) / WINDOW)
    assert found.network_s == 1.5


def test_a_period_counts_unless_something_else_went_on_in_it() -> None:
    meter = IterationMeter((1,), warm_up=0)
    for step, now_s in enumerate((0.0, 1.0, 4.0, 5.0, 9.0, 10.0)):
        if now_s == 4.0:
            meter.disturb(3.0)  # an objective ends
        if now_s == 9.0:
            meter.disturb(9.0)  # one is still under way
        meter.note(1, turn(step, 1, 1, 1), now_s)
    assert (list(meter.periods), meter.num_periods, meter.num_measured) == ([1.0, 1.0, 1.0], 3, 5)


def test_a_step_that_was_cut_short_is_not_counted() -> None:
    """A job that moves may leave workers' turns of one step unreported."""
    meter = IterationMeter((1, 2), warm_up=0)
    meter.note(1, turn(0, 1, 1, 1), 0.0)
    meter.note(1, turn(1, 1, 1, 1), 1.0)
    assert not meter.note(2, turn(1, 1, 1, 1), 2.0)
    meter.note(1, turn(2, 1, 1, 1), 3.0)
    assert meter.note(2, turn(2, 1, 1, 1), 4.0)


def test_one_long_iteration_suffices_or_as_many_as_are_wanted() -> None:
    meter = IterationMeter((1,), warm_up=0)
    for step, now_s in enumerate((0.0, 1.0, 2.0)):
        meter.note(1, turn(step, 1, 1, 1), now_s)
    assert [meter.suffices(wanted) for wanted in (1, 2, 3)] == [True, True, False]
    meter.note(1, turn(3, 1, 1, 1), 2.0 + LONG_S)  # waiting for others does not count
    assert not meter.suffices(9)
    meter.note(1, turn(4, LONG_S - 2, 1, 1), 2.0 + 2 * LONG_S)
    assert meter.suffices(9)


def test_a_load_says_how_long_the_job_took_to_start_and_to_save() -> None:
    def times(loading_s: float | None, saving_s: float | None) -> tuple[float, float]:
        load = load_of(
            "job",
            IterationTimes(2.0, 1.0, 100.0),
            machines=2,
            data_blocks=8,
            parameter_blocks=8,
            iterations_left=5.0,
            dense_bytes=50.0,
            row_growth=1.0,
            loading_s=loading_s,
            saving_s=saving_s,
        )
        return load.loading_s, load.saving_s

    assert times(4.0, 0.5) == (4.0, 0.5)
    assert times(None, None) == (UNKNOWN_LOADING_S, 0.0)

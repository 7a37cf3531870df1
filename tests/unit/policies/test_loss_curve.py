"""When training reaches a target, by its loss curve."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.policies.loss_curve import epochs_to_target, future_log_loss


@pytest.mark.parametrize("floor", [-2.0, 0.0, 0.5])
@pytest.mark.parametrize(("slope", "start"), [(0.2, 1.0), (0.05, 0.3)])
@pytest.mark.parametrize("known", [6, 20])
def test_a_curve_of_the_assumed_form_is_followed_to_its_target(
    floor: float, slope: float, start: float, known: int
) -> None:
    epochs = np.arange(1, 101)
    losses = 1 / (slope * epochs + start) + floor
    found = epochs_to_target(losses[:known].tolist(), float(losses[79]), most=1000.0)
    assert found == pytest.approx(80 - known, rel=0.1)


def test_noise_moves_the_answer_a_little_only() -> None:
    rng = np.random.default_rng(1)
    losses = 1 / (0.1 * np.arange(1, 101) + 0.5) + 0.2
    noisy = losses * (1 + 0.01 * rng.standard_normal(100))
    found = epochs_to_target(noisy[:30].tolist(), float(losses[59]), most=1000.0)
    assert 15 <= found <= 60


@pytest.mark.parametrize(
    ("values", "target"),
    [
        ([1.0, 0.5, 0.4], 0.1),  # too few
        ([1.0, 1.1, 1.2, 1.3, 1.4], 0.1),  # does not fall
        ([1.0, float("nan"), 0.5, 0.4, 0.3], 0.1),
        ([1.0, 0.6, 0.51, 0.501, 0.5001, 0.50001], 0.1),  # ends above the target
    ],
)
def test_where_nothing_can_be_told_the_most_epochs_count(values: list[float], target: float) -> None:
    assert epochs_to_target(values, target, most=50.0) == 50.0


@given(st.lists(st.floats(-1e6, 1e6), max_size=12), st.floats(-1e6, 1e6), st.floats(1.0, 1e4))
def test_the_answer_is_within_its_limits(values: list[float], target: float, most: float) -> None:
    assert 0 < epochs_to_target(values, target, most) <= most


@pytest.mark.parametrize("power", [0.3, 1.0])
def test_a_power_law_is_followed_and_better_known_the_more_of_it_there_is(power: float) -> None:
    losses = np.arange(1.0, 33.0) ** -power
    early, late = (future_log_loss(losses[:known].tolist(), 32) for known in (4, 24))
    for expected, deviation in (early, late):
        assert abs(expected - math.log(losses[-1])) < 3.0 * deviation
    assert late[1] < early[1]
    assert late[0] == pytest.approx(math.log(losses[-1]), abs=0.15)


def test_after_one_epoch_little_is_known_and_unknown_epochs_do_not_matter() -> None:
    expected, deviation = future_log_loss([2.0], 16)
    assert deviation > 0.5
    assert expected < math.log(2.0)
    gap = future_log_loss([2.0, float("nan"), 1.0], 16)
    assert np.isfinite(gap).all()


def test_less_is_known_about_one_that_is_behind() -> None:
    losses = [2.3, 2.3, 2.29, 2.29]
    known, behind = future_log_loss(losses, 32), future_log_loss(losses, 32, behind=1.0)
    assert behind[0] == known[0]
    assert behind[1] > known[1]
    assert future_log_loss(losses, 32, behind=9.0) == behind

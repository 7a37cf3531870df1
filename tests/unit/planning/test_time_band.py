"""The band of a predicted time: its share of the runs, whatever the residuals, and what it is without any."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.planning.calibration import (
    ASSUMED_STARTUP_S,
    LEAST_RUNS,
    MOST_RUNS,
    SHARE,
    WIDE,
    EarlierRun,
    conformal_range,
    time_band,
)


def a_run(predicted_s: float = 100.0, factor: float = 1.0, startup_s: float = 0.0) -> EarlierRun:
    active_s = (predicted_s + startup_s) * factor
    return EarlierRun(predicted_s, startup_s, active_s, 1.0, 1, 4, 0.9, 0.8)


@given(st.lists(st.floats(-3, 3), min_size=LEAST_RUNS + 1, max_size=60, unique=True))
def test_of_exchangeable_residuals_at_least_the_share_is_inside(residuals: list[float]) -> None:
    """Each of n + 1 values is equally likely to be the last: count those inside the range of the others."""
    inside = 0
    for index, value in enumerate(residuals):
        found = conformal_range([*residuals[:index], *residuals[index + 1 :]])
        assert found is not None
        inside += found[0] <= value <= found[1]
    assert inside >= math.ceil(SHARE * len(residuals))


@pytest.mark.parametrize("draw", ["normal", "skewed", "biased"])
@pytest.mark.parametrize("count", [9, 15, 19, 30, 60])
def test_the_share_is_neither_missed_nor_far_exceeded(count: int, draw: str) -> None:
    rng = random.Random(f"{count} {draw}")
    laws = {
        "normal": lambda: rng.gauss(0.0, 0.1),
        "skewed": lambda: rng.expovariate(5.0),
        "biased": lambda: rng.gauss(0.7, 0.1),
    }
    inside = 0
    for _ in range(2000):
        low, high = conformal_range([laws[draw]() for _ in range(count)]) or (0.0, 0.0)
        inside += low <= laws[draw]() <= high
    exact = math.ceil(SHARE * (count + 1)) / (count + 1)
    assert inside / 2000 == pytest.approx(exact, abs=0.03)


def test_nine_runs_are_the_least_and_nineteen_have_two_tails() -> None:
    assert conformal_range([0.1] * (LEAST_RUNS - 1)) is None
    assert conformal_range([*[0.1] * 8, -0.3]) == (-0.3, 0.3)
    ordered = [index / 100 for index in range(19)]
    assert conformal_range(ordered) == (0.0, 0.18)
    assert conformal_range([0.01, 0.02, 0.03], Fraction(1, 2)) == (0.01, 0.03)


def test_without_enough_runs_the_band_is_wide_and_says_so() -> None:
    none, expected_s = time_band(60.0, []), 60.0 + ASSUMED_STARTUP_S
    assert (none.low_s, none.median_s, none.high_s) == (expected_s / WIDE, expected_s, expected_s * WIDE)
    assert (none.startup_s, none.title) == (ASSUMED_STARTUP_S, "assumed")
    assert "because there are no earlier runs of this kind" in none.why
    assert "because there is only 1 earlier run of this kind" in time_band(60.0, [a_run()]).why
    some = time_band(60.0, [a_run(startup_s=10.0)] * 4)
    assert (some.low_s, some.high_s, some.num_runs) == (70.0 / WIDE, 70.0 * WIDE, 0)
    assert "because there are only 4 earlier runs" in some.why
    assert not some.to_dict()["is_calibrated"]


def test_a_bias_of_earlier_runs_moves_the_band_and_the_start_is_added() -> None:
    runs = [a_run(factor=1.5 + index / 1000, startup_s=20.0) for index in range(40)]
    band = time_band(80.0, runs)
    assert 150.0 <= band.low_s <= band.median_s <= band.high_s <= 154.0
    assert (band.startup_s, band.num_runs, band.title) == (20.0, 40, "nine of ten runs")
    assert band.width == pytest.approx((band.high_s - band.low_s) / band.median_s)


def test_only_the_latest_runs_count() -> None:
    runs = [*[a_run(factor=9.0)] * 50, *[a_run(factor=1.0)] * MOST_RUNS]
    assert time_band(100.0, runs).high_s == pytest.approx(100.0)

"""Temperatures are those of a fine search, and intervals hold the share of new values that they promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from hpcbal.ensembling.calibration import (
    COVERAGE,
    TemperatureTally,
    calibrated_tally,
    entropies,
    half_width,
    is_at_bound,
    tempered,
)
from hpcbal.errors import PolicyError


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 4.0])
def test_the_temperature_is_that_of_a_fine_search(sharpness: float) -> None:
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(4000, 5))
    labels = np.array([rng.choice(5, p=row) for row in softmax(logits)])
    rows = softmax(sharpness * logits)

    def nll(log_temperature: float) -> float:
        truth = tempered(rows, math.exp(log_temperature))[np.arange(len(rows)), labels]
        return float(-np.log(truth).mean())

    parts = np.array_split(np.arange(len(rows)), 3)
    tally = sum(
        (TemperatureTally.of(rows[part], labels[part]) for part in parts[1:]),
        TemperatureTally.of(rows[parts[0]], labels[parts[0]]),
    )
    found = tally.temperature()
    best = minimize_scalar(nll, bounds=(-3.0, 3.0), method="bounded", options={"xatol": 1e-6})
    assert math.log(found) == pytest.approx(best.x, abs=1e-2)
    assert found == pytest.approx(sharpness, rel=0.1)  # the labels are drawn from the logits themselves
    assert tempered(softmax(2.0 * logits), 2.0) == pytest.approx(softmax(logits))


def test_extremes_stay_within_the_range_and_are_finite() -> None:
    sure = np.array([[1.0, 0.0], [1.0, 0.0]])
    assert TemperatureTally.of(sure, np.array([0, 0])).temperature() == 1.0, "all are equal"
    assert TemperatureTally.of(sure, np.array([1, 1])).temperature() == pytest.approx(16.0)
    assert TemperatureTally.of(sure[:0], np.array([], int)).temperature() == 1.0
    assert np.isfinite(tempered(sure, 16.0)).all()


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(1, 400))
def test_an_interval_holds_its_share_of_the_samples_it_was_made_of(seed: int, number: int) -> None:
    residuals = np.random.default_rng(seed).standard_cauchy(number)
    found = half_width(residuals)
    if number < 9:
        assert found == math.inf
        return
    covered = (np.abs(residuals) <= found).sum()
    assert covered == math.ceil((number + 1) * COVERAGE)
    tally = calibrated_tally(np.zeros((number, 1)), residuals, "values", found)
    assert tally.scores() == {"coverage": covered / number}


def test_an_interval_needs_a_residual() -> None:
    with pytest.raises(PolicyError, match="at least one residual"):
        half_width(np.array([]))


def test_the_entropy_is_largest_where_nothing_is_known() -> None:
    rows = np.array([[0.25] * 4, [1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]])
    assert entropies(rows) == pytest.approx([math.log(4), 0.0, math.log(2)])


def test_a_temperature_at_its_bound_is_told_from_others() -> None:
    rows, right = np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([0, 1])
    assert is_at_bound(TemperatureTally.of(rows, right).temperature()), "all are right: colder is better"
    mixed = np.tile(rows, (5, 1)), np.array([0, 1] * 4 + [1, 0])
    assert not is_at_bound(TemperatureTally.of(*mixed).temperature())
    assert not is_at_bound(None)


def test_without_likelihoods_that_are_numbers_nothing_is_calibrated() -> None:
    assert TemperatureTally(3, np.full(49, np.nan)).temperature() == 1.0


def test_probabilities_that_say_nothing_keep_their_temperature() -> None:
    rows = np.full((30, 3), 1.0 / 3.0)
    for right in (np.zeros(30, np.int64), np.arange(30) % 3):
        assert TemperatureTally.of(rows, right).temperature() == pytest.approx(1.0, abs=1e-12)

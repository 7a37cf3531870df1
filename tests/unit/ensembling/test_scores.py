"""Probabilities, scores and disagreement equal their definitions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.ensembling import agreement as agreement_module
from hpcbal.ensembling import (
    answers_of,
    calibration_error,
    class_scores,
    disagreement,
    items_of,
    joined,
    value_scores,
)


def test_softmax_outputs_become_probabilities_without_overflow() -> None:
    logits = np.array([[1000.0, 1000.0], [0.0, np.log(3.0)]], np.float32)
    np.testing.assert_allclose(items_of(logits, "softmax"), [[0.5, 0.5], [0.25, 0.75]], rtol=1e-7)


def test_every_pixel_of_a_dense_prediction_is_an_item() -> None:
    logits = np.random.default_rng(1).normal(size=(2, 3, 4, 5)).astype(np.float32)
    probabilities = items_of(logits, "softmax")
    assert probabilities.shape == (24, 5)
    powers = np.exp(logits[1, 0, 2].astype(float))
    np.testing.assert_allclose(probabilities[12 + 2], powers / powers.sum())


def test_every_label_of_a_multi_label_sample_is_an_item_with_two_classes() -> None:
    logits = np.array([[0.0, 2.0], [-800.0, 800.0]], np.float32)
    yes = 1 / (1 + np.exp(-2.0))
    expected = [[0.5, 0.5], [1 - yes, yes], [1.0, 0.0], [0.0, 1.0]]
    np.testing.assert_allclose(items_of(logits, "sigmoid"), expected, atol=1e-12)


def test_values_stay_as_they_are() -> None:
    np.testing.assert_array_equal(items_of(np.array([[1.5, -2]], np.float32), "values"), [[1.5], [-2.0]])


def test_scores_of_a_small_example() -> None:
    probabilities = np.array([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8]])
    labels = np.array([0, 0, 1])
    scores = class_scores(answers_of(probabilities, labels), labels)
    assert scores["accuracy"] == pytest.approx(2 / 3)
    assert scores["nll"] == pytest.approx(-np.log([0.9, 0.4, 0.8]).mean())
    # Three bins with one item each: |1 - 0.9|, |0 - 0.6|, |1 - 0.8|.
    assert scores["calibration_error"] == pytest.approx((0.1 + 0.6 + 0.2) / 3)


@given(st.integers(0, 10**6), st.integers(1, 40))
def test_calibration_error_is_the_weighted_gap_over_fifteen_bins(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    confidence, is_right = rng.uniform(0, 1, n), rng.random(n) < 0.5
    expected = 0.0
    for m in range(15):
        low, high = m / 15, (m + 1) / 15
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            gap = abs(is_right[inside].mean() - confidence[inside].mean())
            expected += inside.sum() / n * gap
    assert calibration_error(confidence, is_right) == pytest.approx(expected, abs=1e-12)


def test_answers_of_parts_are_those_of_the_whole() -> None:
    rng = np.random.default_rng(3)
    probabilities = rng.dirichlet(np.ones(4), 10)
    labels = rng.integers(0, 4, 10)
    whole = answers_of(probabilities, labels)
    parts = joined([answers_of(probabilities[a:b], labels[a:b]) for a, b in ((0, 3), (3, 10))])
    assert class_scores(parts, labels) == class_scores(whole, labels)
    assert len(parts) == 10


@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(1, 30), st.integers(1, 6))
def test_disagreement_is_the_mean_over_pairs_whatever_the_block(
    seed: int, dnns: int, items: int, block: int
) -> None:
    predicted = np.random.default_rng(seed).integers(0, 3, (dnns, items)).astype(np.int32)
    pairs = [(a != b).mean() for a, b in itertools.combinations(predicted, 2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agreement_module, "BLOCK_ITEMS", block)
        assert disagreement(list(predicted)) == pytest.approx(np.mean(pairs), abs=1e-12)


def test_one_dnn_has_nobody_to_disagree_with() -> None:
    assert disagreement([np.zeros(3, np.int32)]) is None


def test_errors_of_values() -> None:
    assert value_scores(np.array([1.0, 4.0]), np.array([0.0, 2.0])) == {"mse": 2.5, "mae": 1.5}

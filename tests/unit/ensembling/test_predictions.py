"""Probabilities, scores and disagreement equal their definitions, and the parts of ranks cover everything."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.ensembling.answers import (
    Answers,
    Kind,
    agreeing_pairs,
    answers_of,
    disagreement,
    has_soft_labels,
    items_of,
    items_per_sample,
    labels_of,
    pieces_of_rank,
    predictions_of,
    y_of,
)
from hpcbal.ensembling.members import ClassTally, ValueTally, tally_of


def test_every_pixel_of_a_dense_prediction_is_an_item() -> None:
    predictions = np.random.default_rng(1).dirichlet(np.ones(5), (2, 3, 4))
    rows = items_of(predictions, "classes")
    assert rows.shape == (24, 5)
    np.testing.assert_array_equal(rows[12 + 2], predictions[1, 0, 2])
    labels = np.arange(24).reshape(2, 3, 4) % 5
    assert labels_of(labels, "classes").tolist() == [i % 5 for i in range(24)]
    assert items_per_sample((3, 4), "int64", "classes") == 12


def test_every_label_of_a_multi_label_sample_is_an_item_with_two_classes() -> None:
    rows = items_of(np.array([[0.5, 0.9], [0.0, 1.0]]), "labels")
    np.testing.assert_allclose(rows, [[0.5, 0.5], [0.1, 0.9], [1.0, 0.0], [0.0, 1.0]])
    assert labels_of(np.array([[1.0, 0.0]], np.float32), "labels").tolist() == [1.0, 0.0]
    assert items_per_sample((2,), "float32", "labels") == 2


def test_values_stay_as_they_are() -> None:
    np.testing.assert_array_equal(items_of(np.array([[1.5, -2]]), "values"), [[1.5], [-2.0]])
    assert labels_of(np.array([3.5, 2.0]), "values").tolist() == [3.5, 2.0]
    assert items_per_sample((), "float32", "values") == 1


def test_a_class_that_is_given_by_shares_is_the_largest_one() -> None:
    shares = np.array([[0.0, 1.0, 0.0], [0.7, 0.2, 0.1]], np.float32)
    assert labels_of(shares, "classes").tolist() == [1.0, 0.0]
    assert items_per_sample((3,), "float32", "classes") == 1


@pytest.mark.parametrize(
    ("kind", "shape", "y"),
    [
        ("classes", (3,), np.array([2, 0], np.int64)),
        ("classes", (2, 3), np.array([[2, 0], [1, 1]], np.uint8)),
        ("classes", (3,), np.array([[0, 1, 0], [1, 0, 0]], np.float32)),
        ("labels", (4,), np.array([[0, 1, 1, 0], [1, 0, 0, 0]], np.float32)),
        ("values", (1,), np.array([0.1, -2.0], np.float32)),
        ("values", (2, 2), np.arange(8, dtype=np.float64).reshape(2, 2, 2)),
    ],
)
def test_predictions_and_labels_follow_from_their_items(kind: Kind, shape: Any, y: np.ndarray) -> None:
    predictions = np.random.default_rng(0).random((2, *shape))
    np.testing.assert_array_equal(predictions_of(items_of(predictions, kind), shape, kind), predictions)
    again = y_of(labels_of(y, kind), y.shape[1:], str(y.dtype), kind)
    np.testing.assert_array_equal(again, y)
    assert again.dtype == y.dtype
    assert not has_soft_labels(y, kind)


def test_labels_that_give_shares_to_several_classes_are_soft() -> None:
    assert has_soft_labels(np.array([[1.0, 0.0], [0.6, 0.4]]), "classes")
    assert not has_soft_labels(np.array([[0.6, 0.4]]), "labels")


def test_scores_of_a_small_example() -> None:
    probabilities = np.array([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8]])
    scores = tally_of(probabilities, np.array([0.0, 0.0, 1.0]), "classes").scores()
    assert scores["accuracy"] == pytest.approx(2 / 3)
    assert scores["nll"] == pytest.approx(-np.log([0.9, 0.4, 0.8]).mean())
    # Three bins with one item each: |1 - 0.9|, |0 - 0.6|, |1 - 0.8|.
    assert scores["calibration_error"] == pytest.approx((0.1 + 0.6 + 0.2) / 3)


@given(st.integers(0, 10**6), st.integers(1, 40))
def test_calibration_error_is_the_weighted_gap_over_fifteen_bins(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    confidence, labels = rng.uniform(0, 1, n), rng.integers(0, 2, n)
    answers = Answers(confidence, confidence, np.zeros(n, np.int32))
    is_right = labels == 0
    expected = 0.0
    for m in range(15):
        inside = (confidence > m / 15) & (confidence <= (m + 1) / 15)
        if inside.any():
            gap = abs(is_right[inside].mean() - confidence[inside].mean())
            expected += inside.sum() / n * gap
    assert ClassTally.of(answers, labels).scores()["calibration_error"] == pytest.approx(expected, abs=1e-12)


@given(st.integers(0, 10**6), st.integers(2, 12), st.data())
def test_tallies_of_parts_add_up_to_that_of_the_whole(seed: int, n: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    cut = data.draw(st.integers(0, n))
    cases: list[tuple[Kind, np.ndarray, np.ndarray]] = [
        ("classes", rng.dirichlet(np.ones(4), n), rng.integers(0, 4, n).astype(float)),
        ("values", rng.normal(size=(n, 1)), rng.normal(size=n)),
    ]
    for kind, rows, labels in cases:
        whole = tally_of(rows, labels, kind)
        parts: Any = tally_of(rows[:cut], labels[:cut], kind)
        parts += tally_of(rows[cut:], labels[cut:], kind)
        assert parts.count == n
        assert parts.scores() == pytest.approx(whole.scores())


def test_a_probability_of_zero_has_a_finite_likelihood() -> None:
    labels = np.array([1])
    assert np.isfinite(ClassTally.of(answers_of(np.array([[1.0, 0.0]]), labels), labels).nll)


@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(1, 30), st.integers(0, 30))
def test_disagreement_is_the_mean_over_pairs_however_items_are_divided(
    seed: int, dnns: int, items: int, cut: int
) -> None:
    predicted = np.random.default_rng(seed).integers(0, 3, (dnns, items)).astype(np.int32)
    pairs = [(a != b).mean() for a, b in itertools.combinations(predicted, 2)]
    agreeing = agreeing_pairs(predicted[:, :cut]) + agreeing_pairs(predicted[:, cut:])
    assert disagreement(agreeing, dnns, items) == pytest.approx(np.mean(pairs), abs=1e-12)


def test_one_dnn_has_nobody_to_disagree_with() -> None:
    assert disagreement(agreeing_pairs(np.zeros((1, 3), np.int32)), 1, 3) is None


def test_errors_of_values() -> None:
    assert ValueTally.of(np.array([1.0, 4.0]), np.array([0.0, 2.0])).scores() == {"mse": 2.5, "mae": 1.5}


@given(st.integers(0, 9), st.integers(0, 40), st.integers(1, 12))
def test_ranks_share_all_predictions_equally_and_few_dnns_each(dnns: int, samples: int, ranks: int) -> None:
    pieces = [pieces_of_rank(dnns, samples, rank, ranks) for rank in range(ranks)]
    covered = [(p.member, i) for part in pieces for p in part for i in range(p.start, p.stop)]
    assert sorted(covered) == [(member, i) for member in range(dnns) for i in range(samples)]
    sizes = [sum(p.stop - p.start for p in part) for part in pieces]
    assert max(sizes) - min(sizes) <= 1
    assert all(len(part) <= dnns / ranks + 2 for part in pieces)

"""The columns of a file of predictions follow from the members' predictions."""

from __future__ import annotations

import numpy as np
import pytest

from hpcbal.ensembling.calibration import entropies, tempered
from hpcbal.ensembling.columns import columns_of_samples, prediction_columns

ROWS = np.array([[[0.9, 0.0, 0.1], [0.1, 0.8, 0.1]], [[0.1, 0.6, 0.3], [0.3, 0.5, 0.2]]])
"""Of two members for two items."""


def test_probabilities_are_calibrated_and_uncertainty_is_split_as_it_is() -> None:
    mean, spread = ROWS.mean(axis=0), np.mean([entropies(each) for each in ROWS], axis=0)
    found = prediction_columns(mean, spread, "classes", 2.0)
    assert found["probabilities"] == pytest.approx(tempered(mean, 2.0))
    assert found["predicted"].tolist() == [0, 1]
    assert found["confidence"] == pytest.approx(found["probabilities"].max(axis=1))
    assert found["within"] + found["between"] == pytest.approx(entropies(mean))
    assert prediction_columns(mean, spread, "classes", None)["probabilities"] == pytest.approx(mean)


def test_a_label_has_the_probability_that_it_applies() -> None:
    rows = np.array([[0.9, 0.1], [0.4, 0.6]])
    found = prediction_columns(rows, entropies(rows), "labels", None)
    assert found["probability"].tolist() == [0.1, 0.6]
    assert found["predicted"].tolist() == [0, 1]
    assert "probabilities" not in found
    assert found["between"].tolist() == [0.0, 0.0]


def test_a_value_has_a_deviation_and_an_interval_if_that_is_known() -> None:
    values = np.array([[1.0, 2.0], [3.0, 2.0]])
    mean, squares = values.mean(axis=0)[:, None], np.square(values).mean(axis=0)
    found = prediction_columns(mean, squares, "values", 0.5)
    assert found["standard_deviation"] == pytest.approx(values.std(axis=0))
    assert (found["lower"].tolist(), found["upper"].tolist()) == ([1.5, 1.5], [2.5, 2.5])
    assert set(prediction_columns(mean, squares, "values", None)) == {"predicted", "standard_deviation"}


def test_items_of_a_sample_lie_in_its_row_and_unknown_ones_are_marked() -> None:
    known = {"predicted": np.array([4, 5], np.int64), "probabilities": np.array([[0.5, 0.5], [0.25, 0.75]])}
    found = columns_of_samples(known, np.array([True, True, False, False]), (2,))
    assert found["predicted"].tolist() == [[4, 5], [-1, -1]]
    assert found["probabilities"].shape == (2, 2, 2)
    assert found["probabilities"].dtype == np.float32
    assert np.isnan(found["probabilities"][1]).all()


def test_values_keep_their_precision_without_an_interval() -> None:
    rows = np.array([[1.0 + 1e-12], [2.0]])
    columns = prediction_columns(rows, np.square(rows[:, 0]), "values", None)
    found = columns_of_samples(columns, np.array([True, True]), ())
    np.testing.assert_array_equal(found["predicted"], rows[:, 0])

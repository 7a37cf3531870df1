"""Which predictions can be combined during a run, and what each DNN adds to the committee of the others."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from hpcbal.ensembling.evidence import encoded
from hpcbal.ensembling.selection import (
    KNOWN_ROUNDS,
    WEIGHT,
    KnownPredictions,
    changes_by_each,
    greedy_selection,
    log_loss_of_mean,
)


def text_of(*probabilities: float) -> str:
    return encoded(np.array(probabilities), "classes")


def test_a_dnn_counts_with_the_best_of_the_epochs_that_are_known() -> None:
    known = KnownPredictions.of(
        {
            "a": ([1.0, 3.0, 2.0], [text_of(0.5, 0.5), None, text_of(0.25, 0.5)]),
            "before": ([9.0], [None]),
            "other form": ([9.0], [text_of(0.5)]),
            "not a number": ([9.0], [text_of(math.nan, math.nan)]),
            "b": ([1.0, 1.0], [text_of(math.nan, 0.125), text_of(0.5, 0.5)]),
        }
    )
    assert known is not None
    assert known.best == {"a": 2, "b": 0}
    assert known.rows == pytest.approx(np.array([[0.5], [0.125]]), rel=2e-3), "items that all predict"
    assert KnownPredictions.of({"a": ([1.0], [None])}) is None
    nothing_in_common = {"a": ([1.0], [text_of(0.5, math.nan)]), "b": ([1.0], [text_of(math.nan, 0.5)])}
    assert KnownPredictions.of(nothing_in_common) is None


def test_what_a_dnn_adds_is_the_change_of_the_loss_of_the_others() -> None:
    rows: NDArray[np.float64] = np.random.default_rng(1).uniform(0.05, 1.0, (9, 40))
    for index, found in enumerate(changes_by_each(rows, log_loss_of_mean)):
        others = np.delete(rows, index, axis=0)
        chosen = greedy_selection(others, log_loss_of_mean, KNOWN_ROUNDS)
        mean = np.array(chosen.weights) @ others
        with_it = log_loss_of_mean((1.0 - WEIGHT) * mean + WEIGHT * rows[index])
        assert found == pytest.approx(float(with_it - log_loss_of_mean(mean)))
    assert changes_by_each(rows[:1], log_loss_of_mean) == [0.0]


@pytest.mark.parametrize(
    ("errors", "best"),
    [
        ({"best": 0.1, "poor": 2.0, "poor too": 2.1, "very poor": 3.0}, "best"),
        ({"high": 1.0, "high too": 1.0, "a little high": 0.9, "low": -1.5}, "low"),
    ],
)
def test_the_best_dnn_and_one_that_is_off_to_the_other_side_add_most(
    errors: dict[str, float], best: str
) -> None:
    known = KnownPredictions.of(
        {name: ([-abs(off)], [encoded(np.full(5, off), "values")]) for name, off in errors.items()}
    )
    assert known is not None
    changes = dict(zip(known.best, changes_by_each(known.rows, known.loss), strict=True))
    assert min(changes, key=lambda name: changes[name]) == best

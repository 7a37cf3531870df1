"""Contributions and differences of members, against one formula over all predictions."""

from __future__ import annotations

import numpy as np
import pytest

from hpcbal.ensembling.members import MOST_COMPARED, MemberTally, tally_of


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits)
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def test_a_contribution_is_the_loss_of_the_others_less_that_of_all() -> None:
    rng = np.random.default_rng(3)
    rows, labels = softmax(rng.normal(size=(4, 50, 3))), rng.integers(0, 3, 50)
    truth, predicted = rows[:, range(50), labels], rows.argmax(axis=2).astype(np.int32)
    parts = [
        MemberTally.of(truth[:, some], predicted[:, some], labels[some].astype(float), "classes")
        for some in (slice(0, 20), slice(20, 50))
    ]
    found = parts[0] + parts[1]
    of_all = tally_of(rows.mean(axis=0), labels.astype(float), "classes").scores()["nll"]
    for member, contribution in enumerate(found.contributions()):
        others = np.delete(rows, member, axis=0).mean(axis=0)
        without = tally_of(others, labels.astype(float), "classes").scores()["nll"]
        assert contribution == pytest.approx(without - of_all)
    expected = [[(one != other).mean() for other in predicted] for one in predicted]
    assert found.distances() == pytest.approx(np.array(expected))


def test_values_differ_by_the_root_of_the_mean_square() -> None:
    values, labels = np.array([[0.0, 0.0], [3.0, 5.0]]), np.array([0.0, 1.0])
    found = MemberTally.of(values, np.zeros((2, 2), np.int32), labels, "values")
    assert found.distances() == [[0.0, pytest.approx(17.0**0.5)], [pytest.approx(17.0**0.5), 0.0]]
    of_all = (1.5**2 + 1.5**2) / 2
    assert found.contributions() == pytest.approx([(9.0 + 16.0) / 2 - of_all, 0.5 - of_all])


def test_very_many_members_are_not_compared_pair_by_pair() -> None:
    count = MOST_COMPARED + 1
    found = MemberTally.of(np.ones((count, 2)), np.zeros((count, 2), np.int32), np.zeros(2), "classes")
    assert found.distances() == []
    assert (found + found).distances() == []
    assert found.contributions() == [0.0] * count


def test_bins_of_confidence_say_how_often_predictions_are_right() -> None:
    rows = np.array([[0.9, 0.1], [0.9, 0.1], [0.3, 0.7]])
    tally = tally_of(rows, np.array([0.0, 1.0, 1.0]), "classes")
    assert (tally + tally).reliability() == [  # type: ignore[union-attr]
        (2, pytest.approx(0.7), 1.0),
        (4, pytest.approx(0.9), 0.5),
    ]

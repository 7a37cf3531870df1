"""One number per watched item, by hand, and as text."""

from __future__ import annotations

import numpy as np
import pytest

from hpcbal.ensembling.evidence import WatchedItems, decoded, encoded
from hpcbal.errors import InputError, PolicyError

IDS = np.array([3, 5, 8, 9, 12])


def test_items_are_drawn_by_the_seed_and_belong_to_their_samples() -> None:
    drawn = WatchedItems.draw("labels", IDS, 4, 7, seed=1)
    again = WatchedItems.draw("labels", IDS, 4, 7, seed=1)
    assert np.array_equal(drawn.sample_ids, again.sample_ids)
    assert np.array_equal(drawn.places, again.places)
    assert len(drawn) == 7
    assert len(set(zip(drawn.sample_ids.tolist(), drawn.places.tolist(), strict=True))) == 7
    assert set(drawn.sample_ids.tolist()) <= set(IDS.tolist())
    other = WatchedItems.draw("labels", IDS, 4, 7, seed=2)
    assert [drawn.sample_ids.tolist(), drawn.places.tolist()] != [
        other.sample_ids.tolist(),
        other.places.tolist(),
    ]
    assert len(WatchedItems.draw("classes", IDS, 1, 100, seed=1)) == len(IDS)


def test_evidence_is_the_right_answers_probability_or_the_error_of_a_value() -> None:
    ids = np.array([12, 5, 3])  # in the order of a batch
    every = WatchedItems.draw("classes", IDS, 1, 5, seed=0)
    items = every.items_in(ids)
    assert every.sample_ids[items].tolist() == [3, 5, 12]
    probabilities = np.array([[0.1, 0.9], [0.6, 0.4], [0.3, 0.7]])
    assert every.evidence(items, ids, probabilities, np.array([1, 0, 0])) == pytest.approx([0.3, 0.6, 0.9])
    labels = WatchedItems.draw("labels", IDS, 2, 10, seed=0)
    yes, y = np.array([[0.9, 0.2], [0.5, 0.6], [0.3, 0.8]]), np.array([[1, 0], [0, 1], [1, 1]])
    found = labels.evidence(labels.items_in(ids), ids, yes, y)
    assert found == pytest.approx([0.3, 0.8, 0.5, 0.6, 0.9, 0.8])
    values = WatchedItems.draw("values", IDS, 1, 5, seed=0)
    errors = values.evidence(items, ids, np.array([[2.0], [1.0], [5.0]]), np.array([1.5, 3.0, 5.0]))
    assert errors == pytest.approx([0.0, -2.0, 0.5])


def test_labels_that_have_no_evidence_are_refused() -> None:
    every = WatchedItems.draw("classes", IDS, 1, 5, seed=0)
    with pytest.raises(InputError, match="predict 4 items of a sample, but its label has 1"):
        every.evidence(np.array([0]), np.array([3]), np.ones((1, 4, 2)), np.array([1]))
    with pytest.raises(InputError, match="shares to several classes"):
        every.evidence(np.array([0]), np.array([3]), np.ones((1, 2)), np.array([[0.5, 0.5]]))


@pytest.mark.parametrize(
    ("kind", "numbers", "rounding"),
    [
        ("classes", [1.0, 0.999, 0.5, 1e-6, 0.0, np.nan], 4e-3),
        ("labels", [0.25, 1e-300], 1.0),
        ("values", [-3e8, 0.0, 1.5, np.nan, 2e-9], 1e-6),
    ],
)
def test_numbers_survive_as_short_text(kind: str, numbers: list[float], rounding: float) -> None:
    text = encoded(np.array(numbers), kind)  # type: ignore[arg-type]
    letter, found = decoded(text)
    assert letter == ("e" if kind == "values" else "p")
    assert found == pytest.approx(np.array(numbers), rel=rounding, abs=1e-30, nan_ok=True)
    assert len(encoded(np.full(512, 0.3), "classes")) <= 1 + 4 * (512 * 2 + 2) // 3
    assert not found.flags.writeable


@pytest.mark.parametrize("text", ["", "x", "pA", "q" + "AAAA", "p!!!!"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(PolicyError, match="evidence of a DNN"):
        decoded(text)

"""Training and validation samples: disjoint, complete, never empty."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcbal.data.split import drawn_ids, ids_for_test, numbers_drawn, split_ids
from hpcbal.errors import DataError


@pytest.fixture
def ten(array_dataset: Any) -> Any:
    return array_dataset(np.zeros((10, 2), np.uint8))


def test_the_split_is_seeded_sorted_and_complete(ten: Any) -> None:
    train, validation = split_ids(ten, seed=0, validation_fraction=0.3)
    assert (len(train), len(validation)) == (7, 3)
    assert sorted([*train, *validation]) == list(range(10))
    assert (np.diff(train) > 0).all()
    assert (np.diff(validation) > 0).all()
    again = split_ids(ten, seed=0, validation_fraction=0.3)
    np.testing.assert_array_equal(validation, again[1])
    others = {tuple(split_ids(ten, seed, 0.3)[1]) for seed in range(10)}
    assert len(others) > 5


def test_the_number_held_out_is_rounded(ten: Any) -> None:
    assert len(split_ids(ten, 0, 0.06)[1]) == 1
    assert len(split_ids(ten, 0, 0.94)[1]) == 9


def test_a_split_without_validation_samples_is_refused(ten: Any) -> None:
    with pytest.raises(
        DataError, match=r"got 0.04, but that leaves none of 10 samples for validation; .* 0.1"
    ):
        split_ids(ten, 0, 0.04)
    with pytest.raises(DataError, match=r"got -0.1, allowed: 0 or more, and below 1"):
        split_ids(ten, 0, -0.1)


def test_one_sample_cannot_be_split(array_dataset: Any) -> None:
    one = array_dataset(np.zeros((1, 2)))
    only = "that leaves none for the test of 1 sample; allowed: 0 for no test samples"
    with pytest.raises(DataError, match=only):
        ids_for_test(one, 0, 0.2)
    with pytest.raises(DataError, match="none of 1 sample for validation; allowed: 0 for no validation"):
        split_ids(one, 0, 0.2)
    with pytest.raises(DataError, match="none of 1 sample for training; lower it"):
        split_ids(one, 0, 0.9)
    assert split_ids(one, 0, 0.0)[0].tolist() == [0]


def test_zero_means_no_validation(ten: Any) -> None:
    train, validation = split_ids(ten, 0, 0.0)
    assert train.tolist() == list(range(10))
    assert (len(validation), validation.dtype) == (0, np.int64)


def test_a_split_without_training_samples_is_refused(ten: Any) -> None:
    with pytest.raises(DataError, match=r"got 0.99, but that leaves none of 10 samples for training"):
        split_ids(ten, 0, 0.99)
    with pytest.raises(DataError, match=r"got 1.0, allowed"):
        split_ids(ten, 0, 1.0)


def test_a_dataset_may_bring_its_own_split(ten: Any) -> None:
    ten.validation_ids = [9, 2]
    train, validation = split_ids(ten, seed=0, validation_fraction=0.0)
    assert validation.tolist() == [2, 9]
    assert train.tolist() == [0, 1, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("ids", [[], [-1], [10], [1, 1], [[1, 2]], [0.5], range(10)])
def test_a_wrong_split_of_the_dataset_is_refused(ten: Any, ids: Any) -> None:
    ten.validation_ids = ids
    with pytest.raises(DataError, match=r"the dataset's validation_ids"):
        split_ids(ten, 0, 0.2)


@pytest.mark.parametrize(
    ("parts", "most", "drawn"),
    [
        ((80, 20), None, (80, 20)),
        ((80, 20), 100, (80, 20)),
        ((80, 20), 10, (8, 2)),
        ((80, 0), 10, (10, 0)),
        ((99, 1), 10, (9, 1)),
        ((1, 99), 10, (1, 9)),
        ((80, 20), 2, (1, 1)),
    ],
)
def test_a_few_samples_are_drawn_from_both_parts(
    parts: tuple[int, int], most: int | None, drawn: tuple[int, int]
) -> None:
    assert numbers_drawn(*parts, most) == drawn
    training, validation = np.arange(parts[0]), np.arange(parts[0], sum(parts))
    found = drawn_ids(training, validation, 3, most)
    assert tuple(map(len, found)) == drawn
    assert all((np.diff(ids) > 0).all() for ids in found)
    assert set(found[0]) <= set(training)
    assert set(found[1]) <= set(validation)
    again = drawn_ids(training, validation, 3, most)
    assert all(np.array_equal(*pair) for pair in zip(found, again, strict=True))

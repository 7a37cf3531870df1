"""Strange labels are noticed before anything is trained, from the labels alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpcbal.data.datasets import digits, hdf5
from hpcbal.data.datasets.small_sets import InMemoryDataset
from hpcbal.data.labels import class_labels, doubts_about


def labelled(*labels: int, num_classes: int | None = None) -> InMemoryDataset:
    """Samples with these labels."""
    dataset = InMemoryDataset("ours", np.zeros((len(labels), 2)), np.array(labels))
    if num_classes is not None:
        dataset.num_classes = num_classes
    return dataset


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (labelled(0, 0, 0), "the data has one class only"),
        (labelled(3, 3, num_classes=7), "every label is 3: with one class"),
        (labelled(1, 2, 3, 1), "the labels are 1 to 3, so class 0 has no samples .* 4 outputs for 3 classes"),
        (labelled(0, 1, 3), "but class 2 has no samples, and each network gets 4 outputs for 3"),
        (labelled(0, 900_000), "classes 1, 2, 3, 4, 5 and 899994 more have no samples"),
        (
            labelled(1, 2, 3, num_classes=3),
            "^the labels are 1 to 3, allowed: 0 to 2, so 1 .*; subtract 1$",
        ),
        (
            labelled(7, 8, 9, num_classes=3),
            "labels are 7 to 9, allowed: 0 to 2, so 3 .* num_classes to 10,",
        ),
        (
            labelled(-1, 0, 1, -1, num_classes=2),
            "are -1 to 1, allowed: 0 to 1, so 2 .*; number the cl",
        ),
        (labelled(1, 1, num_classes=1), "every label is 1, allowed: 0 to 0, so 2 samples .*; subtract 1"),
        (labelled(4, 4, num_classes=2), "every label is 4, allowed: 0 to 1, so 2 samples are broken; raise"),
        (labelled(1, 2, num_classes=9), "the labels are 1 to 2, but classes 0, 3, 4, 5, 6 and 2 more"),
    ],
)
def test_doubtful_labels_are_described(dataset: InMemoryDataset, expected: str) -> None:
    (doubt,) = doubts_about(dataset)
    assert re.search(expected, doubt), doubt


@pytest.mark.parametrize("dtype", np.typecodes["AllInteger"])
def test_labels_may_be_integers_of_any_type(dtype: str) -> None:
    dataset = labelled(0, 1, 0)
    dataset.labels = np.array([0, 1, 0], dtype)
    found = class_labels(dataset)
    assert found is not None
    assert (found.dtype, found.tolist()) == (np.int64, [0, 1, 0])
    assert doubts_about(dataset) == ()


def test_labels_beyond_every_class_are_not_wrapped_around() -> None:
    dataset = labelled(0, 1, 0)
    dataset.labels = np.array([0, 1, 2**64 - 1], np.uint64)
    (doubt,) = doubts_about(dataset)
    assert doubt.startswith("the labels are 0 to 9223372036854775807, allowed: 0 to 1, so 1 sample is broken")
    assert doubt.endswith("; number the classes from 0")


def test_every_class_with_samples_raises_no_doubt() -> None:
    assert doubts_about(digits()) == ()
    assert doubts_about(labelled(1, 0, 1)) == ()


def test_labels_of_a_file_are_looked_at(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"] = np.zeros((4, 2))
        file["labels"] = [1, 2, 1, 2]
    (doubt,) = doubts_about(hdf5(str(tmp_path / "a.h5")))
    assert doubt.endswith("each network gets 3 outputs for 2 classes; subtract 1")


@pytest.mark.parametrize("other", [None, ["cat", "dog"], [0, 1, 2], [[0], [1]], [[1], [1, 2]], [0.5, 1.5]])
def test_an_attribute_that_holds_something_else_is_ignored(other: Any) -> None:
    dataset = labelled(1, 2)
    dataset.labels = other
    assert class_labels(dataset) is None
    assert doubts_about(dataset) == ()

"""HDF5 files with several arrays and labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpcbal.data import LabelSpec, SampleSpec
from hpcbal.data.datasets.hdf5 import hdf5
from hpcbal.data.held_out import open_dataset
from hpcbal.errors import DataError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "x.h5", "w") as made:
        made["photos"] = rng.integers(0, 256, (6, 4, 5, 3), np.uint8)
        made["steps"] = rng.random((6, 7, 2), np.float32)
        encoded = made.create_dataset("files", (6,), h5py.vlen_dtype(np.uint8))
        for row in range(6):
            encoded[row] = np.full(row + 1, row, np.uint8)
        made["kinds"] = np.array([b"cat", b"dog", b"cat", b"cow", b"dog", b"cat"])
        made["prices"] = rng.random(6)
        made["masks"] = rng.integers(0, 3, (6, 4, 5))
        made["short"] = np.zeros(5)
        made["numbers"] = made.create_dataset("uneven", (6,), h5py.vlen_dtype(np.float32))
    return tmp_path / "x.h5"


def test_arrays_and_labels_have_the_names_that_they_are_given(file: Path) -> None:
    args = {
        "path": str(file),
        "images": {"photo": "photos", "series": "steps", "scan": "files"},
        "labels": {"kind": "kinds", "price": "prices", "mask": "masks"},
    }
    with pytest.raises(DataError, match="the name 'mask'"):
        open_dataset("hpcbal.data:hdf5", args)
    args["labels"] = {"kind": "kinds", "price": "prices", "ink": "masks"}
    dataset: Any = open_dataset("hpcbal.data:hdf5", args)
    shapes = {name: spec and spec.shape for name, spec in dataset.sample_spec.items()}
    assert shapes == {"photo": (4, 5, 3), "series": (7, 2), "scan": None}
    labels = dataset.label_spec.by_name
    found = {name: (spec.shape, spec.dtype, spec.num_classes) for name, spec in labels.items()}
    assert found == {"kind": ((), "int64", 3), "price": ((), "float64", 1), "ink": ((4, 5), "int64", 3)}
    sample, label = dataset.read(3)
    dataset.close()
    with h5py.File(file) as made:
        np.testing.assert_array_equal(sample["photo"], made["photos"][3])
        assert sample["scan"] == bytes([3] * 4)
        assert label["kind"] == 1
        assert label["price"] == made["prices"][3]
    assert "read as text" in dataset.remarks[0]
    assert dataset.read(5)[0]["scan"] == bytes([5] * 6)


def test_one_array_or_one_label_may_have_no_name(file: Path) -> None:
    one: Any = hdf5(str(file), "photos", {"kind": "kinds", "price": "prices"})
    assert one.sample_spec == SampleSpec.of((4, 5, 3), "uint8")
    other: Any = hdf5(str(file), {"a": "photos"}, "kinds")
    assert other.label_spec == LabelSpec()
    assert (len(other), other.num_classes) == (6, 3)
    assert one.fingerprint != other.fingerprint


@pytest.mark.parametrize(
    ("images", "labels", "shapes", "message"),
    [
        ({"a": "phots"}, "kinds", None, "no dataset 'phots', there are: "),
        ({"a": "photos"}, {"b": "short"}, None, r"numbers of rows differ \(photos: 6, short: 5\)"),
        ({"a": "numbers"}, "kinds", None, "got variable-length float32, allowed in samples of several"),
        ({"a": "files"}, "kinds", "photos", "allowed with several named arrays: leave it out"),
    ],
)
def test_files_that_do_not_fit_are_refused(
    file: Path, images: Any, labels: Any, shapes: str | None, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        hdf5(str(file), images, labels, shapes)

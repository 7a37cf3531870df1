"""Samples without labels come from folders, files and callables, named, in their order, of the run's kind."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest

from hpcbal.data import LabelSpec, SampleSpec
from hpcbal.data.dataset import Dataset
from hpcbal.data.evaluation import open_unlabelled
from hpcbal.errors import DataError

ARRAYS: Any = SimpleNamespace(
    num_classes=3, sample_spec=SampleSpec.of((2, 2, 1), "float32"), label_spec=LabelSpec()
)
IMAGES: Any = SimpleNamespace(num_classes=3, sample_spec=None, label_spec=LabelSpec())
X = np.arange(12, dtype=np.float32).reshape(3, 2, 2, 1)


def all_of(dataset: Dataset) -> tuple[list[str], list[Any]]:
    numbers = range(len(dataset))
    return [dataset.describe(i) for i in numbers], [dataset.read(i)[0] for i in numbers]


def test_a_folder_needs_no_folders_of_classes(tmp_path: Path) -> None:
    for name in ("b.png", "a.JPG", "sub/c.png", ".hidden.png", "notes.txt", ".git/d.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    names, read = all_of(open_unlabelled(str(tmp_path), {}, IMAGES))
    assert names == ["a.JPG", "b.png", "sub/c.png"]
    assert read == [name.encode() for name in names]
    assert all_of(open_unlabelled(str(tmp_path / "b.png"), {}, IMAGES)) == (["b.png"], [b"b.png"])
    assert len(open_unlabelled(str(tmp_path), {"extensions": ["txt"]}, IMAGES)) == 1
    with pytest.raises(DataError, match=r"no \.tif file in .*; for others, give --data-args"):
        open_unlabelled(str(tmp_path), {"extensions": ["tif"]}, IMAGES)


def test_each_folder_counts_once_wherever_links_lead(tmp_path: Path) -> None:
    root, other = tmp_path / "root", tmp_path / "other"
    for path in (root / "a.png", root / "sub" / "c.png", other / "d.png"):
        path.parent.mkdir(exist_ok=True, parents=True)
        path.touch()
    for link, target in (
        ("loop", "."),
        ("sub/up", ".."),
        ("before-sub", "sub"),
        ("elsewhere", "../other"),
        ("twice", "../other"),
        ("../other/back", "../root"),
        ("nowhere", "gone"),
        ("itself", "itself"),
    ):
        (root / link).symlink_to(target)
    names, _ = all_of(open_unlabelled(str(root), {}, IMAGES))
    assert names == ["a.png", "elsewhere/d.png", "sub/c.png"]
    assert len(open_unlabelled(str(root / "loop"), {}, IMAGES)) == 3


def test_files_of_arrays_need_no_labels(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    np.savez(tmp_path / "x.npz", x=X, ids=np.arange(3))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["rows"] = X[..., 0]  # gray images get their channel, as in training
    for name, shown in (("x.npy", "x.npy[2]"), ("x.npz", "x.npz[2]"), ("x.h5", "x.h5:rows[2]")):
        names, read = all_of(open_unlabelled(str(tmp_path / name), {}, ARRAYS))
        assert names[2] == str(tmp_path / shown)
        np.testing.assert_array_equal(read, X)


def test_an_hdf5_file_with_several_datasets_needs_a_name(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a"], file["b"] = X, np.zeros(3)
    with pytest.raises(DataError, match=r'holds the datasets a, b; .*--data-args \'\{"images": "NAME"\}\''):
        open_unlabelled(str(tmp_path / "x.h5"), {}, ARRAYS)
    assert len(open_unlabelled(str(tmp_path / "x.h5"), {"images": "a"}, ARRAYS)) == 3


def test_what_a_callable_returns_needs_no_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mine", SimpleNamespace(rows=lambda stop: X[:stop]))
    names, read = all_of(open_unlabelled("mine:rows", {"stop": 2}, ARRAYS))
    assert names == ["given sample 0", "given sample 1"]
    np.testing.assert_array_equal(read, X[:2])


@pytest.mark.parametrize(
    ("name", "args", "problem"),
    [
        ("x.npy", {"path": 1}, "--data-args: got path, allowed for .*: nothing"),
        ("x.txt", {}, r"allowed: a folder of images, an image, a file that ends in \.h5"),
        ("wrong.npy", {}, r"--data: got an array of shape \(5,\) .*, allowed: arrays of shape \(2, 2, 1\)"),
        ("photos", {}, r"--data: got encoded images, .*, allowed: arrays of shape \(2, 2, 1\)"),
        ("two.npz", {}, "holds a, b, allowed: one array, or one named x"),
        ("damaged.npy", {}, "cannot be read as a file of NumPy"),
    ],
)
def test_other_data_are_refused(tmp_path: Path, name: str, args: Any, problem: str) -> None:
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "wrong.npy", np.zeros((4, 5)))
    np.savez(tmp_path / "two.npz", a=X, b=X)
    (tmp_path / "x.txt").touch()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").write_bytes(b"any")
    (tmp_path / "damaged.npy").write_bytes(b"nothing")
    with pytest.raises(DataError, match=problem):
        open_unlabelled(str(tmp_path / name), args, ARRAYS)

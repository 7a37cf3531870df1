"""Classes of two datasets are compared by name, and labels in any form with one meaning are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from hpcbal.data.datasets.hdf5 import hdf5
from hpcbal.data.datasets.image_folder import image_folder
from hpcbal.data.held_out import WithOwnValidation, of_same_kind
from hpcbal.data.labels import Relabelled, check_classes, difference
from hpcbal.errors import DataError


def folder(root: Path, *classes: str) -> Path:
    for number, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        Image.new("L", (2, 2), color=number).save(root / name / "x.png")
    return root


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        (("Dogs", "cats", "horses"), "'Dogs' is 'dogs' there: upper and lower case and spaces count"),
        (("cats", "cows", "horses"), "cows is not among them, dogs is missing"),
        (("cats", "cows", "dogs", "horses"), "cows is not among them"),
    ],
)
def test_other_classes_are_refused_by_name(tmp_path: Path, classes: tuple[str, ...], words: str) -> None:
    ours = image_folder(str(folder(tmp_path / "train", "cats", "dogs", "horses")))
    theirs = image_folder(str(folder(tmp_path / "validation", *classes)))
    with pytest.raises(DataError) as caught:
        of_same_kind(theirs, ours, "--data validation")
    assert words in str(caught.value)
    assert "but cats, dogs, horses in data.dataset" in str(caught.value)


def write(path: Path, labels: Any, **attributes: Any) -> Path:
    with h5py.File(path, "w") as file:
        file["images"] = np.arange(4, dtype=np.float32).reshape(4, 1)
        stored = file.create_dataset("labels", data=labels)
        stored.attrs.update(attributes)
    return path


def test_classes_in_another_order_are_matched_by_name(tmp_path: Path) -> None:
    ours = hdf5(
        str(write(tmp_path / "a.h5", ["cat", "dog", "cow", "cat"], class_names=["dog", "cat", "cow"]))
    )
    theirs = hdf5(str(write(tmp_path / "b.h5", ["cat", "dog", "cow", "cat"])))
    assert (ours.labels.tolist(), theirs.labels.tolist()) == ([1, 0, 2, 1], [0, 2, 1, 0])
    matched = of_same_kind(theirs, ours, "data.validation.dataset b.h5")
    assert isinstance(matched, Relabelled)
    assert np.asarray(matched.labels).tolist() == [1, 0, 2, 1]
    assert [int(matched.read(i)[1]) for i in range(4)] == [1, 0, 2, 1]
    both = WithOwnValidation(ours, matched)
    assert any("were matched by name" in remark for remark in both.remarks)


@pytest.mark.parametrize("classes", [("horses", "cats"), ("dogs",)])
def test_held_out_data_may_lack_classes(tmp_path: Path, classes: tuple[str, ...]) -> None:
    ours = image_folder(str(folder(tmp_path / "train", "cats", "dogs", "horses")))
    theirs = image_folder(str(folder(tmp_path / "validation", *classes)))
    matched = of_same_kind(theirs, ours, "data.validation")
    numbers = [ours.class_names.index(name) for name in sorted(classes)]
    assert [int(matched.read(i)[1]) for i in range(len(classes))] == numbers
    both = WithOwnValidation(ours, matched)
    assert both.labels is not None
    assert (both.labels.tolist(), both.num_classes) == ([0, 1, 2, *numbers], 3)
    assert any("its classes were matched by name: it has no" in remark for remark in both.remarks)


def test_numbers_beside_names_cause_a_warning_that_names_both(tmp_path: Path) -> None:
    named = hdf5(str(write(tmp_path / "a.h5", ["cat", "dog", "dog", "cat"])))
    numbers = hdf5(str(write(tmp_path / "b.h5", [1, 0, 1, 0])))
    for ours, theirs, words in (
        (named, numbers, "the classes of data.validation are numbers and those of data.dataset have names"),
        (numbers, named, "the classes of data.dataset are numbers and those of data.validation have names"),
    ):
        both = WithOwnValidation(ours, of_same_kind(theirs, ours, "data.validation"))
        (remark,) = [text for text in both.remarks if "was taken" in text]
        assert words in remark
        assert "class 0 was taken for 'cat', and class 1 for 'dog'" in remark
    assert not any("was taken" in text for text in WithOwnValidation(numbers, numbers).remarks)


def test_names_that_occur_twice_cannot_be_matched() -> None:
    assert difference(("a", "a", "b"), ("b", "a", "a")) == (
        "several classes have the same name, so they cannot be matched"
    )


def test_equal_names_need_no_matching(tmp_path: Path) -> None:
    """ImageNet has two classes of the name crane."""
    ours, theirs = (
        hdf5(str(write(tmp_path / f"{name}.h5", [0, 1, 2, 0], class_names=["crane", "crane", "dog"])))
        for name in "ab"
    )
    assert of_same_kind(theirs, ours, "--data b") is theirs


@pytest.mark.parametrize(
    ("labels", "numbers", "words"),
    [
        (np.eye(3)[[2, 0, 1, 2]], [2, 0, 1, 2], "one-hot"),
        ([b"b", b"a", b"c", b"a"], [1, 0, 2, 0], "class 0 is 'a'"),
        ([True, False, True, True], [1, 0, 1, 1], "booleans"),
        ([2.0, 0.0, 1.0, 2.0], [2, 0, 1, 2], "stored as floats"),
        ([[2], [0], [1], [2]], [2, 0, 1, 2], ""),
        ([[2, 0, 1, 2]], [2, 0, 1, 2], ""),
    ],
    ids=["one-hot", "text", "booleans", "floats", "a column", "a row"],
)
def test_labels_with_one_meaning_are_read(
    tmp_path: Path, labels: Any, numbers: list[int], words: str
) -> None:
    dataset = hdf5(str(write(tmp_path / "a.h5", labels)))
    assert dataset.labels.tolist() == numbers
    assert words in " ".join(dataset.remarks)


def test_labels_with_no_one_meaning_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"allowed: .*one-hot rows"):
        hdf5(str(write(tmp_path / "a.h5", np.ones((4, 3)))))


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([0.0, np.inf, 1.0, 2.0], "row 1 holds inf, allowed: whole numbers from 0"),
        ([0.5, 1.0, 2.0, 0.0], r"row 0 holds 0\.5, allowed: whole numbers"),
        ([0.0, np.nan, 1.0, 2.0], "row 1 holds nan, allowed"),
        (np.array([0, 2**63 + 5, 1, 2], np.uint64), "row 1 holds 9223372036854775813, allowed"),
        ([-1, 0, 1, 2], r"got labels -1\.\.2, allowed: 0\.\.2; number the classes from 0, and leave out"),
    ],
)
def test_labels_that_are_no_class_are_named(tmp_path: Path, labels: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        hdf5(str(write(tmp_path / "a.h5", labels)))


def test_ids_of_something_else_are_refused_with_a_mapping(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"only 3 different ones occur.*\{7: 0, 500: 1, 1000000: 2\}"):
        check_classes(hdf5(str(write(tmp_path / "a.h5", [7, 1_000_000, 500, 7]))))


def test_parts_of_the_data_are_no_classes(tmp_path: Path) -> None:
    for part in ("train", "val"):
        folder(tmp_path / part, "cats", "dogs")
    with pytest.raises(DataError) as caught:
        image_folder(str(tmp_path))
    assert f"set data.args.path to {tmp_path / 'train'}, and data.validation: " in str(caught.value)

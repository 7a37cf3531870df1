"""Folders of images: numbered by name, broken files named, missing ones explained."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from hpcbal.data import BadSample, Dataset, PreprocessedSamples, image_folder
from hpcbal.data.operations.decode import Decode
from hpcbal.data.operations.geometry import Resize
from hpcbal.errors import DataError


def test_classes_and_files_are_numbered_by_name(image_tree: Path) -> None:
    dataset: Dataset = image_folder(str(image_tree))
    names = [dataset.describe(i) for i in range(len(dataset))]
    assert names == ["cat/a.png", "cat/b.jpg", "dog/c.PNG", "dog/d.png", "dog/e.jpeg"]
    assert [dataset.read(i)[1] for i in range(5)] == [0, 0, 1, 1, 1]
    assert dataset.num_classes == 2
    assert dataset.sample_spec is None


def test_reading_gives_the_files_bytes(image_tree: Path) -> None:
    assert image_folder(str(image_tree)).read(1)[0] == (image_tree / "cat" / "b.jpg").read_bytes()


def test_extensions_may_be_chosen(image_tree: Path) -> None:
    dataset = image_folder(str(image_tree), extensions=[".PNG"])
    assert [dataset.describe(i) for i in range(len(dataset))] == ["cat/a.png", "dog/c.PNG", "dog/d.png"]


def test_what_is_left_out_inside_of_classes_is_told(image_tree: Path) -> None:
    advice = (
        "left out: images lie in the folder of their class itself, and data.args.extensions lists their types"
    )
    assert image_folder(str(image_tree)).notes == (f"image_folder: dog/folder.png/ is {advice}",)
    (image_tree / "cat" / "more").mkdir()
    (image_tree / "dog" / "scan.TIF").write_bytes(b"")
    assert image_folder(str(image_tree), ["png"]).notes == (
        f"image_folder: cat/b.jpg, cat/more/, dog/e.jpeg and 2 more are {advice}",
    )
    (image_tree / "dog" / "folder.png").rmdir()
    everything = image_folder(str(image_tree), ["png", "jpg", "jpeg", "tif"])
    assert everything.notes == (f"image_folder: cat/more/ is {advice}",)
    (image_tree / "cat" / "more").rmdir()
    assert image_folder(str(image_tree), ["png", "jpg", "jpeg", "tif"]).notes == ()


def test_a_relative_path_starts_at_the_current_directory(
    image_tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(image_tree.parent)
    assert len(image_folder("images")) == 5


def test_broken_files_are_named_and_the_others_usable(image_tree: Path) -> None:
    jpeg = image_tree / "cat" / "b.jpg"
    jpeg.write_bytes(jpeg.read_bytes()[:-200])
    (image_tree / "dog" / "d.png").write_bytes(b"")
    dataset = image_folder(str(image_tree))
    (image_tree / "dog" / "e.jpeg").unlink()
    source = PreprocessedSamples(dataset, (Decode(), Resize(16, 16)), seed=0, validation_fraction=0.2)
    reasons = {}
    for sample_id in range(len(dataset)):
        try:
            assert source.sample(sample_id, 0, training=True)[0].shape == (16, 16, 3)
        except BadSample as bad:
            reasons[bad.where] = bad.reason
    assert set(reasons) == {"cat/b.jpg", "dog/d.png", "dog/e.jpeg"}
    assert "truncated" in reasons["cat/b.jpg"].lower()
    assert reasons["dog/d.png"] == "the file is empty"
    assert reasons["dog/e.jpeg"] == "No such file or directory"


def test_a_missing_directory_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        DataError, match=rf"nowhere \(from {tmp_path}\) is not a directory; set data.args.path"
    ):
        image_folder("nowhere")


def test_a_directory_without_classes_is_explained(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"holds no folders; expected one per class"):
        image_folder(str(tmp_path))


@pytest.mark.parametrize(("train", "held_out"), [("train", "val"), ("Train", "Val"), ("TRAINING", "test")])
def test_parts_of_the_data_are_no_classes(tmp_path: Path, train: str, held_out: str) -> None:
    for part in (train, held_out):
        (tmp_path / part / "cat").mkdir(parents=True)
    with pytest.raises(DataError, match="which are parts of the data, not classes") as caught:
        image_folder(str(tmp_path))
    assert f"set data.args.path to {tmp_path / train}, and data.validation: " in str(caught.value)
    assert f"{{args: {{path: {tmp_path / held_out}}}}}" in str(caught.value)


def test_classes_that_lie_one_folder_deeper_are_found(tmp_path: Path) -> None:
    for folder in ("pets/cat", "pets/dog", "__MACOSX"):
        (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(
        DataError, match=r"if these are the classes, or train and val, set data\.args\.path"
    ) as caught:
        image_folder(str(tmp_path))
    assert str(caught.value).endswith(f" to {tmp_path / 'pets'}")


def test_a_class_without_images_is_named(image_tree: Path) -> None:
    (image_tree / "bird").mkdir()
    (image_tree / "bird" / "a.bmp").write_bytes(b"")
    with pytest.raises(
        DataError, match=r"no .png, .jpg, .jpeg file in bird of .*; remove the folder, or add"
    ):
        image_folder(str(image_tree))


@pytest.mark.parametrize("extensions", ["png", [], [1]])
def test_wrong_extensions_are_refused(image_tree: Path, extensions: object) -> None:
    with pytest.raises(DataError, match=r"extensions: got .*, allowed: a list such as"):
        image_folder(str(image_tree), extensions=extensions)  # type: ignore[arg-type]


def test_another_file_is_another_fingerprint(image_tree: Path) -> None:
    before = image_folder(str(image_tree)).fingerprint
    (image_tree / "dog" / "d.png").rename(image_tree / "dog" / "f.png")
    assert image_folder(str(image_tree)).fingerprint != before


@pytest.fixture
def num_lists(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The classes whose files were listed."""
    module, lists = sys.modules["hpcbal.data.datasets.image_folder"], []
    original = module._contents

    def listing(directory: Path, endings: tuple[str, ...]) -> tuple[tuple[str, ...], list[str]]:
        lists.append(directory)
        found: tuple[tuple[str, ...], list[str]] = original(directory, endings)
        return found

    monkeypatch.setattr(module, "_contents", listing)
    monkeypatch.setattr(module, "WORTH_KEEPING", 5)
    return lists


def age(tree: Path, age_s: float = 60.0) -> None:
    """Let the last change of each class be some time ago."""
    for folder in (tree / "cat", tree / "dog"):
        os.utime(folder, (time.time() - age_s,) * 2)


def test_a_list_of_many_files_is_kept_until_a_class_changes(image_tree: Path, num_lists: list[Path]) -> None:
    age(image_tree)
    first = image_folder(str(image_tree))
    assert len(num_lists) == 2
    again = image_folder(str(image_tree))
    assert len(num_lists) == 2
    assert again.fingerprint == first.fingerprint
    assert again.content_fingerprint == first.content_fingerprint
    assert [again.describe(i) for i in range(5)] == [first.describe(i) for i in range(5)]
    assert [again.read(i) for i in range(5)] == [first.read(i) for i in range(5)]
    assert again.labels.tolist() == [0, 0, 1, 1, 1]
    assert again.notes == first.notes != ()
    assert image_folder(str(image_tree), ["png"]).labels.tolist() == [0, 1, 1]
    assert len(num_lists) == 4

    (image_tree / "dog" / "d.png").unlink()  # changes the time of its folder
    assert len(image_folder(str(image_tree))) == 4
    (image_tree / "ant").mkdir()
    (image_tree / "cat" / "b.jpg").rename(image_tree / "ant" / "a.jpg")
    changed = image_folder(str(image_tree))
    assert changed.class_names == ("ant", "cat", "dog")
    assert [changed.describe(i) for i in range(4)] == ["ant/a.jpg", "cat/a.png", "dog/c.PNG", "dog/e.jpeg"]


def test_few_files_and_classes_that_are_changing_are_listed_each_time(
    image_tree: Path, num_lists: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    age(image_tree, 0.5)  # another change may get the same time
    for num in (2, 4):
        assert len(image_folder(str(image_tree), index=str(image_tree / "index"))) == 5
        assert len(num_lists) == num
    age(image_tree)
    monkeypatch.setattr(sys.modules["hpcbal.data.datasets.image_folder"], "WORTH_KEEPING", 6)
    for num in (6, 8):
        image_folder(str(image_tree))
        assert len(num_lists) == num
    assert not list(image_tree.glob(".hpcbal*"))
    for _ in range(2):  # somebody wants it
        assert image_folder(str(image_tree), index=str(image_tree / "index")).remarks == ()
    assert len(num_lists) == 10


def test_a_list_that_cannot_be_kept_is_made_each_time(image_tree: Path, num_lists: list[Path]) -> None:
    age(image_tree)
    for num in (2, 4):
        dataset = image_folder(str(image_tree), index=str(image_tree / "no" / "index"))
        assert len(dataset) == 5
        assert len(num_lists) == num
        assert "so each start looks through all the data again" in dataset.remarks[0]

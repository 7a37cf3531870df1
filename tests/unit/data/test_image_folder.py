"""Folders of images: numbered by name, broken files named, missing ones explained."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbal.data import BadSample, Dataset, PreprocessedSamples, image_folder
from hpcbal.data.operations import Decode, Resize
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

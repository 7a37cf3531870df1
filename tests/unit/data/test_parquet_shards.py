"""Parquet files with encoded images are read as pyarrow reads them, at random, one row group at a time."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from pyarrow import parquet

from hpcbal.data import BadSample, PreprocessedSamples, parquet_shards
from hpcbal.data.datasets import parquet_shards as function
from hpcbal.data.datasets import shards as shards_module
from hpcbal.data.held_out import of_same_kind
from hpcbal.data.labels import Relabelled
from hpcbal.data.operations.decode import Decode
from hpcbal.data.operations.geometry import Resize
from hpcbal.errors import DataError

Png = Callable[..., bytes]

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
module = sys.modules[function.__module__]


def write(
    path: Path,
    images: list[bytes | None],
    labels: Any,
    rows: int = 2,
    names: list[str] | None = None,
    columns: tuple[str, str] = ("image", "label"),
) -> Path:
    """A file as `datasets.Dataset.to_parquet` writes it; `labels` may be an array of any type."""
    stored = pa.array([{"bytes": image, "path": f"{n}.png"} for n, image in enumerate(images)], IMAGE)
    table = pa.table({columns[0]: stored, columns[1]: labels, "width": pa.array([30] * len(images))})
    if names is not None:
        features = {columns[1]: {"names": names, "_type": "ClassLabel"}, columns[0]: {"_type": "Image"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    parquet.write_table(table, path, row_group_size=rows)
    return path


@pytest.fixture
def shards(tmp_path: Path, pixels: NDArray[np.uint8], png: Png) -> Path:
    """photos/train-{0,1}.parquet with five and two images, in groups of two rows, with names of classes."""
    root = tmp_path / "photos"
    root.mkdir()
    images: list[bytes | None] = [png(pixels[i:]) for i in range(7)]
    names = ["cat", "dog", "emu"]
    write(root / "train-0.parquet", images[:5], [2, 0, 1, 1, 0], names=names)
    write(root / "train-1.parquet", images[5:], [0, 2], names=names)
    (root / "README.md").write_text("no rows")
    return root


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (["image", "label", "image"], "'image' may mean (image, image)"),
        (["image", "label", "label"], "'label' may mean (label, label)"),
        (["image", "label", "label.x"], "'label' may mean (label, label.x)"),
    ],
)
def test_columns_of_the_same_name_are_refused(tmp_path: Path, columns: list[str], shown: str) -> None:
    values = {"image": pa.array([b"x"]), "label": pa.array([1]), "label.x": pa.array([7])}
    table = pa.Table.from_arrays([values[name] for name in columns], columns)
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=re.escape(f"it has 2 columns that {shown}; rename all but one")):
        parquet_shards(str(tmp_path))


def test_files_that_are_missing_by_the_numbers_of_the_others_are_named(tmp_path: Path) -> None:
    """Hugging Face numbers files from 0, and used to add a digest; others number from 1."""
    for name in ("a-00000-of-00003-ab12", "a-00002-of-00003-cd34", "b-00001-of-00002", "b-00002-of-00002"):
        write(tmp_path / f"{name}.parquet", [b"image"], [0])
    with pytest.raises(DataError, match=rf"{tmp_path} lacks a-00001-of-00003; restore what is missing, or"):
        parquet_shards(str(tmp_path))
    assert parquet_shards(str(tmp_path / "b-*")).remarks == ()
    one = str(tmp_path / "a-00000-of-00003-ab12.parquet")
    some = parquet_shards(str(tmp_path / "a-*"))
    for dataset, path, missing in (
        (parquet_shards(one), one, "a-00001-of-00003, a-00002-of-00003"),
        (some, f"{tmp_path}/a-*", "a-00001-of-00003"),
    ):
        remark = f"parquet_shards: {path} finds no {missing}, so the samples in there are left out"
        assert dataset.remarks == (remark,)
    assert len(some) == 2
    (tmp_path / "a-00002-of-00003-cd34.parquet").rename(tmp_path / "c-00007-of-00010.parquet")
    with pytest.raises(
        DataError, match="lacks a-00001-of-00003, a-00002-of-00003, c-00000-of-00010 and 8 more;"
    ):
        parquet_shards(str(tmp_path))


def test_samples_are_those_that_pyarrow_reads(shards: Path) -> None:
    dataset = parquet_shards(str(shards))
    tables = [parquet.read_table(path) for path in sorted(shards.glob("*.parquet"))]
    theirs = pa.concat_tables(tables).to_pylist()
    assert len(dataset) == len(theirs) == 7
    for sample_id in (6, 0, 4, 2, 3, 5, 1):
        row = theirs[sample_id]
        assert dataset.read(sample_id) == (row["image"]["bytes"], row["label"])
    assert dataset.labels.tolist() == [row["label"] for row in theirs]
    assert (dataset.num_classes, dataset.class_names) == (3, ("cat", "dog", "emu"))
    assert [dataset.describe(i) for i in (0, 4, 5)] == [
        "train-0.parquet: row 0",
        "train-0.parquet: row 4",
        "train-1.parquet: row 0",
    ]
    assert dataset.remarks == ()
    source = PreprocessedSamples(dataset, (Decode(), Resize(8, 8)), seed=0, validation_fraction=0.2)
    assert source.sample(1, 0, training=True)[0].shape == (8, 8, 3)


def test_one_row_group_is_read_once_for_all_its_rows(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = parquet_shards(str(shards))
    groups: list[int] = []
    original = parquet.ParquetFile.read_row_group

    def counting(self: Any, number: int, *args: Any, **named: Any) -> Any:
        groups.append(number)
        return original(self, number, *args, **named)

    monkeypatch.setattr(parquet.ParquetFile, "read_row_group", counting)
    for sample_id in (0, 1, 0, 4, 5, 6, 3, 2, 0):
        dataset.read(sample_id)
    assert groups == [0, 2, 0, 1, 0]


def test_the_index_is_made_once_and_again_if_a_file_changes(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[int] = []
    original = module._indexed
    monkeypatch.setattr(module, "_indexed", lambda *args: searches.append(1) or original(*args))
    before, again = parquet_shards(str(shards)), parquet_shards(str(shards))
    assert len(searches) == 1
    assert (again.fingerprint, again.content_fingerprint) == (before.fingerprint, before.content_fingerprint)
    assert [again.read(i) for i in range(7)] == [before.read(i) for i in range(7)]
    assert again.class_names == before.class_names
    write(shards / "train-1.parquet", [b"image"], [1], names=["cat", "dog", "emu"])
    after = parquet_shards(str(shards))
    assert len(searches) == 2
    assert after.labels.tolist() == [2, 0, 1, 1, 0, 1]
    assert after.fingerprint != before.fingerprint


@pytest.mark.parametrize(
    "labels",
    [
        pa.array(["fir", "ash", "fir"]),
        pa.array(["fir", "ash", "fir"]).dictionary_encode(),
        pa.array(["fir", "ash", "fir"], pa.large_string()),
        pa.array(["fir", "ash", "fir"], pa.string_view()),
    ],
    ids=["text", "dictionary", "large text", "view"],
)
def test_labels_that_are_texts_are_numbered_by_name(tmp_path: Path, labels: pa.Array) -> None:
    path = str(write(tmp_path / "a.parquet", [b"x"] * 3, labels))
    dataset = parquet_shards(path)
    assert (dataset.class_names, dataset.labels.tolist()) == (("ash", "fir"), [1, 0, 1])
    assert parquet_shards(path, class_names=["fir", "elm", "ash"]).labels.tolist() == [0, 2, 0]
    with pytest.raises(DataError, match=r"has the label 'fir', allowed: those in data.args.class_names: ash"):
        parquet_shards(path, class_names=["ash"])


def test_classes_of_two_datasets_are_compared_by_name(tmp_path: Path) -> None:
    ours = parquet_shards(str(write(tmp_path / "a.parquet", [b"x"] * 2, [0, 1], names=["cat", "dog"])))
    theirs = parquet_shards(str(write(tmp_path / "b.parquet", [b"x"] * 2, [0, 1], names=["dog", "cat"])))
    matched = of_same_kind(theirs, ours, "data.validation")
    assert isinstance(matched, Relabelled)
    assert [int(matched.read(i)[1]) for i in range(2)] == [1, 0]
    other = parquet_shards(str(write(tmp_path / "c.parquet", [b"x"] * 2, [0, 1], names=["cow", "cat"])))
    with pytest.raises(DataError, match=r"cow is not among them"):
        of_same_kind(other, ours, "data.validation")


@pytest.mark.parametrize(
    "labels", [pa.array([True, False]), pa.array([1, 0], pa.int8()), pa.array([1, 0], pa.uint64())]
)
def test_whole_numbers_of_any_type_are_classes(tmp_path: Path, labels: pa.Array) -> None:
    dataset = parquet_shards(str(write(tmp_path / "a.parquet", [b"x"] * 2, labels)))
    assert (dataset.labels.tolist(), dataset.is_counted) == ([1, 0], True)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_columns_may_hold_bytes_and_be_named(tmp_path: Path, kind: pa.DataType) -> None:
    table = pa.table({"jpg": pa.array([b"x", b"y"], kind), "kind": [0, 1], "cls": ["a", "b"]})
    parquet.write_table(table, tmp_path / "a.parquet")
    dataset = parquet_shards(str(tmp_path), image="jpg", label="kind")
    assert [dataset.read(i) for i in range(2)] == [(b"x", 0), (b"y", 1)]
    with pytest.raises(
        DataError,
        match=r"its columns are jpg \(.*binary.*\), kind \(int64\), cls \(string\), which does not show "
        r"which is the image; set data.args.image to the name of a column with bytes, or a struct",
    ):
        parquet_shards(str(tmp_path))
    with pytest.raises(DataError, match=r"which is the label; set data.args.label to the name of a column"):
        parquet_shards(str(tmp_path), image="jpg", label="jpg")


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        (pa.array([1, None]), r"row 1 has no label; leave out rows without one"),
        (pa.array(["a", None]), r"row 1 has no label"),
        (pa.array([1, -1]), r"row 1 has the label -1, allowed: a class, 0 or more, below 2\*\*63"),
        (pa.array([1, 2**63 + 1], pa.uint64()), r"row 1 has the label 9223372036854775809, allowed: a class"),
        (pa.array([0.5, 1.0]), r"label \(double\), .* which is the label; set data.args.label"),
        (pa.array([[1], [2]]), r"label \(list<.*, which does not show which is the label"),
    ],
)
def test_labels_that_are_no_classes_are_named(tmp_path: Path, labels: pa.Array, reason: str) -> None:
    path = write(tmp_path / "a.parquet", [b"x"] * 2, labels)
    with pytest.raises(DataError, match=reason):
        parquet_shards(str(path))
    assert not list(tmp_path.glob(".hpcbal*"))


def test_files_with_other_columns_are_named(shards: Path) -> None:
    other = shards / "train-1.parquet"
    for written, reason in (
        (
            ([b"x"], [1], 2, None),
            r"whole numbers in 'label', but train-0.parquet has images in 'image.bytes'",
        ),
        (([b"x"], [1], 2, ["cat", "dog", "cow"]), r"of the classes cat, dog, cow, but train-0.parquet has"),
        (([b"x"], ["cat"], 2, None), r"it has images in 'image.bytes' and texts in 'label', but"),
        (([b"x"], [1], 2, None, ("img", "label")), r"it has images in 'img.bytes' and"),
        (([b"x"], [1], 2, None, ("image", "kind")), r"which is the label; set data.args.label"),
    ):
        write(other, *written)
        with pytest.raises(DataError, match=rf"{other}: .*{reason}"):
            parquet_shards(str(shards))


def test_rows_without_an_image_are_broken_samples_and_files_without_images_refused(
    tmp_path: Path, pixels: NDArray[np.uint8], png: Png
) -> None:
    path = write(tmp_path / "a.parquet", [None, png(pixels), b"no image"], [0, 1, 0])
    source = PreprocessedSamples(parquet_shards(str(path)), (Decode(), Resize(8, 8)), 0, 0.2)
    with pytest.raises(BadSample, match=r"sample 0 \(a.parquet: row 0\): the row has no image"):
        source.sample(0, 0, training=True)
    with pytest.raises(BadSample, match=r"sample 2 \(a.parquet: row 2\): not an image"):
        source.sample(2, 0, training=True)
    source.sample(1, 0, training=True)
    write(path, [None, None], [0, 1])
    with pytest.raises(DataError, match=r"'image.bytes' is empty in all rows: the images are not in the"):
        parquet_shards(str(path))


def test_damaged_and_other_files_are_explained(shards: Path, tmp_path: Path) -> None:
    first = shards / "train-0.parquet"
    whole = first.read_bytes()
    for content in (b"", b"no Parquet", whole[:-20], whole[:100] + whole[200:]):
        first.write_bytes(content)
        with pytest.raises(DataError, match=rf"{first} cannot be read, is no Parquet file, or is damaged"):
            parquet_shards(str(shards))
    write(first, [], pa.array([], pa.int64()))
    with pytest.raises(DataError, match=r"no row in train-0.parquet"):
        parquet_shards(str(first))
    with pytest.raises(DataError, match=r"is no file and holds no files \*.parquet; set data.args.path"):
        parquet_shards(str(tmp_path))


@pytest.mark.parametrize("most_open", [1, 2])
def test_a_file_that_changes_or_vanishes_in_mid_run_spoils_its_samples_alone(
    shards: Path, most_open: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards_module, "MOST_OPEN", most_open)
    source = PreprocessedSamples(parquet_shards(str(shards)), (Decode(), Resize(8, 8)), 0, 0.2)
    last = shards / "train-1.parquet"
    source.sample(5, 0, training=True)
    source.sample(0, 0, training=True)
    last.write_bytes(last.read_bytes()[:50])
    with pytest.raises(BadSample, match=r"train-1.parquet has changed since the run began; restore it"):
        source.sample(6, 0, training=True)
    source.sample(2, 0, training=True)
    last.unlink()
    with pytest.raises(BadSample, match=r"sample 6 \(train-1.parquet: row 1\): "):
        source.sample(6, 0, training=True)
    source.sample(4, 0, training=True)


def test_damage_inside_a_row_group_spoils_its_samples_alone(shards: Path, png: Png) -> None:
    """A change that keeps size and time shows only when the rows are unpacked."""
    dataset = parquet_shards(str(shards))
    first = shards / "train-0.parquet"
    group = parquet.ParquetFile(first).metadata.row_group(1).column(0)
    content = bytearray(first.read_bytes())
    content[group.data_page_offset : group.data_page_offset + 40] = b"\xff" * 40
    stat = first.stat()
    first.write_bytes(content)
    os.utime(first, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    source = PreprocessedSamples(dataset, (Decode(), Resize(8, 8)), 0, 0.2)
    with pytest.raises(BadSample, match=r"sample 2 \(train-0.parquet: row 2\): "):
        source.sample(2, 0, training=True)
    source.sample(0, 0, training=True)
    source.sample(4, 0, training=True)


def test_large_row_groups_cause_a_warning(tmp_path: Path) -> None:
    images: list[bytes | None] = [bytes([n]) * (3 * 2**20) for n in range(3)]
    path = write(tmp_path / "a.parquet", images, [0, 1, 0])
    (remark,) = parquet_shards(str(path)).remarks
    assert "has up to 2 images (6 MB), and each read in random order unpacks a whole one" in remark
    write(path, [image * 2 for image in images if image], [0, 1, 0], rows=1)
    assert parquet_shards(str(path)).remarks == ()


def test_without_pyarrow_one_sentence_says_so(shards: Path) -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from hpcbal.data import parquet_shards\n"
        "from hpcbal.errors import DataError\n"
        "try:\n    parquet_shards(sys.argv[1])\n"
        "except DataError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(shards)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith("parquet_shards: needs pyarrow (")
    assert done.stdout.endswith("); pip install 'hpcbal[parquet]'\n")

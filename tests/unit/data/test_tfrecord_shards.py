"""TFRecord files that TensorFlow writes are read as TensorFlow reads them, at random, by an index."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from hpcbal.data import BadSample, PreprocessedSamples, tfrecord_shards
from hpcbal.data.datasets.tfrecord import crc32c, records
from hpcbal.data.held_out import of_same_kind
from hpcbal.data.operations.decode import Decode
from hpcbal.data.operations.geometry import Resize
from hpcbal.errors import DataError

Png = Callable[..., bytes]
Values = dict[str, Any]

IMAGE, LABEL = "image/encoded", "image/class/label"


def example(values: Values) -> bytes:
    """An Example: bytes and texts, floats or whole numbers, one of them or a list."""
    features = {}
    for name, given in values.items():
        listed = given if isinstance(given, list) else [given]
        if isinstance(listed[0], bytes | str):
            texts = [each.encode() if isinstance(each, str) else each for each in listed]
            features[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=texts))
        elif isinstance(listed[0], float):
            features[name] = tf.train.Feature(float_list=tf.train.FloatList(value=listed))
        else:
            features[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=listed))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def write(path: Path, samples: Iterable[Values | bytes]) -> Path:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for sample in samples:
            writer.write(sample if isinstance(sample, bytes) else example(sample))
    return path


@pytest.fixture
def shards(tmp_path: Path, pixels: NDArray[np.uint8], png: Png) -> Path:
    """photos/train-0000{0,1}-of-00002 with three and two samples, as the scripts for ImageNet write them."""
    root = tmp_path / "photos"
    root.mkdir()
    more = {"image/filename": "a.png", "image/object/bbox/xmin": [0.5, 0.25], "image/height": 20}
    labels = [2, 0, 1, 1, 300]
    samples = [{IMAGE: png(pixels[i:]), LABEL: label, **more} for i, label in enumerate(labels)]
    write(root / "train-00000-of-00002", samples[:3])
    write(root / "train-00001-of-00002", samples[3:])
    (root / "README.md").write_text("no records")
    return root


def test_samples_are_those_that_tensorflow_reads(shards: Path) -> None:
    dataset = tfrecord_shards(str(shards))
    paths = sorted(map(str, shards.glob("train-*")))
    features = {IMAGE: tf.io.FixedLenFeature([], tf.string), LABEL: tf.io.FixedLenFeature([], tf.int64)}
    theirs = [tf.io.parse_single_example(record, features) for record in tf.data.TFRecordDataset(paths)]
    assert len(dataset) == len(theirs) == 5
    for sample_id in (4, 0, 2, 3, 1):
        sample = theirs[sample_id]
        assert dataset.read(sample_id) == (sample[IMAGE].numpy(), int(sample[LABEL]))
    assert dataset.labels.tolist() == [2, 0, 1, 1, 300]
    assert dataset.num_classes == 301
    assert [dataset.describe(i) for i in (2, 3)] == [
        "train-00000-of-00002: record 2",
        "train-00001-of-00002: record 0",
    ]
    source = PreprocessedSamples(dataset, (Decode(), Resize(8, 8)), seed=0, validation_fraction=0.2)
    assert source.sample(1, 0, training=True)[0].shape == (8, 8, 3)


def test_the_index_is_made_once_and_again_if_a_file_changes(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tfrecord_shards(str(shards))
    again = tfrecord_shards(str(shards))
    assert (again.fingerprint, again.content_fingerprint) == (before.fingerprint, before.content_fingerprint)
    assert [again.read(i) for i in range(5)] == [before.read(i) for i in range(5)]
    (kept,) = shards.glob(".hpcbal-index-*")
    with np.load(kept) as index:
        assert sorted(index.files) == ["first", "identity", "label", "length", "shard"]
    assert [again.describe(i) for i in range(5)] == [before.describe(i) for i in range(5)]
    written_ns = kept.stat().st_mtime_ns
    tfrecord_shards(str(shards))
    assert kept.stat().st_mtime_ns == written_ns
    write(shards / "train-00001-of-00002", [{IMAGE: b"image", LABEL: 0}])
    after = tfrecord_shards(str(shards))
    assert after.labels.tolist() == [2, 0, 1, 0]
    assert after.fingerprint != before.fingerprint
    assert kept.stat().st_mtime_ns != written_ns


def test_a_file_that_is_missing_is_named(shards: Path) -> None:
    (shards / "train-00001-of-00002").unlink()
    with pytest.raises(DataError, match=r"lacks train-00001-of-00002; restore what is missing"):
        tfrecord_shards(str(shards))
    (remark,) = tfrecord_shards(str(shards / "train-*")).remarks
    assert "finds no train-00001-of-00002, so the samples" in remark


def test_indexes_of_dali_are_no_shards(tmp_path: Path) -> None:
    write(tmp_path / "x.tfrecord", [{"image": b"a", "label": 1}])
    for name in ("x.tfrecord.index", "x.tfrecord.idx", "x.idx"):
        (tmp_path / name).write_text("0 100\n")
    assert len(tfrecord_shards(str(tmp_path))) == 1


def test_features_may_be_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tfrecord", [{"photo": b"one", "kind": 3, "label": 1, "image": b"two"}])
    assert tfrecord_shards(str(path)).read(0) == (b"two", 1)
    assert tfrecord_shards(str(path), image="photo").read(0) == (b"one", 1)
    assert tfrecord_shards(str(path), image="photo", label="kind").read(0) == (b"one", 3)


def test_labels_that_are_texts_are_numbered_by_name(tmp_path: Path) -> None:
    samples = [
        {"image": b"a", "label": "fir"},
        {"image": b"b", "label": "ash"},
        {"image": b"c", "label": "fir"},
    ]
    path = str(write(tmp_path / "train.tfrecord", samples))
    for _ in range(2):  # found, and from the index
        dataset = tfrecord_shards(path)
        assert (dataset.class_names, dataset.labels.tolist()) == (("ash", "fir"), [1, 0, 1])
        assert not dataset.is_counted
    other = tfrecord_shards(path, class_names=["fir", "elm", "ash"])
    assert (other.num_classes, other.labels.tolist()) == (3, [0, 2, 0])
    assert other.fingerprint != dataset.fingerprint
    with pytest.raises(DataError, match=r"has the label 'fir', allowed: those in data.args.class_names: ash"):
        tfrecord_shards(path, class_names=["ash"])
    held_out = tfrecord_shards(str(write(tmp_path / "val.tfrecord", samples[:1])))
    assert int(of_same_kind(held_out, dataset, "data.validation").read(0)[1]) == 1


def test_names_of_classes_are_those_of_tensorflow_datasets(tmp_path: Path) -> None:
    path = str(write(tmp_path / "x-train.tfrecord-00000-of-00001", [{"image": b"a", "label": 1}]))
    assert not hasattr(tfrecord_shards(path), "class_names")
    names = tmp_path / "label.labels.txt"
    names.write_text("cat\n dog\nemu\n\n")
    dataset = tfrecord_shards(str(tmp_path))
    assert (dataset.class_names, dataset.num_classes) == (("cat", "dog", "emu"), 3)
    assert tfrecord_shards(path, class_names=["a", "b"]).class_names == ("a", "b")
    names.write_text("cat\n")
    with pytest.raises(DataError, match=r"has 1 classes and 1 names of classes, but its labels go up to 1"):
        tfrecord_shards(path)
    names.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"label.labels.txt cannot be read: it is no text; restore it"):
        tfrecord_shards(path)


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        ({"image": b"x"}, r"record 1: there is no feature 'label', which the first record has"),
        ({"label": 1, "picture": b"x"}, r"record 1: there is no feature 'image'"),
        ({"image": [b"x", b"y"], "label": 1}, r"'image' holds 2 of them, allowed: one of the kind bytes"),
        ({"image": 3, "label": 1}, r"'image' holds whole numbers, allowed: one of the kind bytes"),
        ({"image": b"x", "label": "cat"}, r"'label' holds bytes, allowed: one of the kind whole numbers"),
        ({"image": b"x", "label": 1.0}, r"'label' holds floats"),
        ({"image": b"x", "label": [1, 2]}, r"'label' holds 2 of them"),
        ({"image": b"x", "label": -1}, r"'label' is -1, allowed: a class, 0 or more"),
        (b"\xff\xff", r"record 1: no tf.train.Example"),
        (b"\x0a\x7f", r"record 1: no tf.train.Example"),
        (b"", r"record 1: there is no feature 'image'"),
    ],
)
def test_records_that_are_not_whole_are_named(tmp_path: Path, sample: Values | bytes, reason: str) -> None:
    path = write(tmp_path / "a.tfrecord", [{"image": b"x", "label": 1}, sample])
    with pytest.raises(DataError, match=reason):
        tfrecord_shards(str(path))
    assert not list(tmp_path.glob(".hpcbal*"))


def test_features_that_do_not_show_which_is_which_are_listed(tmp_path: Path) -> None:
    sample = {"a": b"x", "b": 1, "c": 0.5}
    path = str(write(tmp_path / "a.tfrecord", [sample, sample]))
    shown = r"record 0: the features are a \(bytes\), b \(whole numbers\), c \(floats\), which does not show"
    with pytest.raises(DataError, match=rf"{shown} which is the image; set data.args.image to its name"):
        tfrecord_shards(path)
    with pytest.raises(DataError, match=r"which is the label; set data.args.label to its name"):
        tfrecord_shards(path, image="a", label="d")
    with pytest.raises(DataError, match=r"'c' holds floats, allowed: one of the kind whole numbers"):
        tfrecord_shards(path, image="a", label="c")


def test_damaged_and_other_files_are_explained(shards: Path, tmp_path: Path) -> None:
    first = shards / "train-00000-of-00002"
    whole = first.read_bytes()
    (length,) = np.frombuffer(whole[:8], "<u8").tolist()
    middle, second = length // 2, length + 16  # of the first record, and where the second one begins
    for content, reason in (
        (whole[:-1], "it ends inside record 2"),
        (whole[: length + 20], "it ends inside record 1"),
        (
            whole[:middle] + b"\0" + whole[middle + 1 :],
            "record 0 is damaged: it has another checksum",
        ),
        (whole[:second] + b"\xff" + whole[second + 1 :], "the length of record 1 is damaged"),
        (b"\x1f\x8b" + bytes(40), "it does not begin with a record, or is compressed"),
        (b"short", "it ends inside record 0"),
    ):
        first.write_bytes(content)
        with pytest.raises(DataError, match=rf"{first} is no TFRecord file, or is damaged \({reason}\);"):
            tfrecord_shards(str(shards))
    first.write_bytes(b"")
    with pytest.raises(DataError, match=r"no record in train-00000-of-00002"):
        tfrecord_shards(str(first))
    with pytest.raises(DataError, match=r"is no file and holds no files \*.tfrecord\*; set data.args.path"):
        tfrecord_shards(str(tmp_path))


def test_a_file_that_changes_or_vanishes_in_mid_run_spoils_its_samples_alone(shards: Path) -> None:
    last = shards / "train-00001-of-00002"
    source = PreprocessedSamples(tfrecord_shards(str(shards)), (Decode(), Resize(8, 8)), 0, 0.2)
    with open(last, "r+b") as file:
        file.truncate(100)
    with pytest.raises(BadSample, match=r"train-00001-of-00002 has changed since the run began; restore it"):
        source.sample(3, 0, training=True)
    source.sample(0, 0, training=True)
    os.unlink(shards / "train-00000-of-00002")
    source.sample(1, 0, training=True)  # it is still open
    dataset = tfrecord_shards(str(write(last, [{"image": b"x", "label": 0}])))
    last.unlink()
    with pytest.raises(FileNotFoundError):
        dataset.read(0)


@pytest.mark.parametrize(
    ("data", "checksum"),
    [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b"123456789", 0xE3069283),
    ],
)
def test_checksums_are_those_of_the_standard(data: bytes, checksum: int) -> None:
    """RFC 3720, App. B.4."""
    assert crc32c(data) == checksum


def test_long_records_have_the_checksums_that_tensorflow_writes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lengths = [*range(2040, 2120), 4096, 65535, 70_000, 1_000_003, 0, 1]
    given = [rng.bytes(length) for length in lengths]
    path = write(tmp_path / "a", given)
    with open(path, "rb") as file:
        found = list(records(file, path.stat().st_size))
    assert [data for _, data in found] == given
    content = path.read_bytes()
    assert all(content[start : start + len(data)] == data for start, data in found)
    changed = bytearray(content)
    changed[found[82][0] + 40_000] ^= 0x10
    with pytest.raises(Exception, match="record 82 is damaged"):
        list(records(io.BytesIO(changed), len(changed)))

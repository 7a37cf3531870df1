"""Tar archives are read at random, by an index that is made once and follows what happens to the archives."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hpcbal.data import BadSample, PreprocessedSamples, tar_shards
from hpcbal.data.content import is_repaired
from hpcbal.data.datasets import shards as shards_module
from hpcbal.data.operations.decode import Decode
from hpcbal.data.operations.geometry import Resize
from hpcbal.errors import DataError

Png = Callable[..., bytes]
Members = list[tuple[str, bytes]]


def write(path: Path, members: Members, tar_format: int = tarfile.USTAR_FORMAT) -> Path:
    with tarfile.open(path, "w", format=tar_format) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


@pytest.fixture
def shards(tmp_path: Path, pixels: NDArray[np.uint8], png: Png) -> Path:
    """photos/train-{0,1}.tar with three and two samples, and files that are left out."""
    root = tmp_path / "photos"
    root.mkdir()
    long_name = "x" * 150
    write(
        root / "train-0.tar",
        [
            ("a/0.png", png(pixels)),
            ("a/0.json", b"{}"),
            ("a/0.cls", b"2"),
            ("._0.png", b"of a Mac"),
            ("b.cls", b"0\n"),
            ("b.JPG", png(pixels[1:], "JPEG")),
            (f"{long_name}.png", png(pixels[2:])),
            (f"{long_name}.cls", b"1"),
        ],
        tarfile.PAX_FORMAT,
    )
    write(
        root / "train-1.tar",
        [("c.png", png(pixels[3:])), ("c.cls", b"1"), ("d.png", png(pixels[4:])), ("d.cls", b"2")],
        tarfile.GNU_FORMAT,
    )
    (root / "README.md").write_text("no archive")
    return root


def names(dataset: Any) -> list[str]:
    return [dataset.describe(i) for i in range(len(dataset))]


def indexes(folder: Path) -> list[Path]:
    return sorted(folder.glob(".hpcbal-index-*"))


@pytest.fixture
def num_scans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of archives that were read from one end to the other, as the length of a list."""
    scans: list[int] = []
    original = tarfile.open

    def counting(*args: Any, **named: Any) -> Any:
        scans.append(1)
        return original(*args, **named)

    monkeypatch.setattr(tarfile, "open", counting)
    return scans


def test_samples_are_those_of_all_archives_in_order(
    shards: Path, pixels: NDArray[np.uint8], png: Png
) -> None:
    dataset = tar_shards(str(shards))
    assert names(dataset) == [
        "train-0.tar: a/0",
        "train-0.tar: b",
        f"train-0.tar: {'x' * 150}",
        "train-1.tar: c",
        "train-1.tar: d",
    ]
    assert dataset.labels.tolist() == [2, 0, 1, 1, 2]
    assert dataset.num_classes == 3
    for sample_id in (4, 0, 2, 3):
        assert dataset.read(sample_id) == (png(pixels[sample_id:]), dataset.labels[sample_id])
    assert dataset.read(1) == (png(pixels[1:], "JPEG"), 0)
    source = PreprocessedSamples(dataset, (Decode(), Resize(8, 8)), seed=0, validation_fraction=0.2)
    assert source.sample(1, 0, training=True)[0].shape == (8, 8, 3)


def test_archives_may_be_named_by_a_pattern_or_one_alone(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(tar_shards(str(shards / "train-[01].tar"))) == 5
    monkeypatch.chdir(shards)
    assert len(tar_shards("train-1.tar")) == 2


def test_the_index_is_made_once(shards: Path, num_scans: list[int]) -> None:
    first = tar_shards(str(shards))
    assert len(num_scans) == 2
    again = tar_shards(str(shards))
    assert len(num_scans) == 2
    assert names(again) == names(first)
    assert again.read(4) == first.read(4)
    assert again.fingerprint == first.fingerprint
    assert again.content_fingerprint == first.content_fingerprint
    assert not again.remarks
    assert len(indexes(shards)) == 1
    tar_shards(str(shards), extensions=["png", "jpg", "gif"])  # another question, another index
    assert len(num_scans) == 4
    assert len(indexes(shards)) == 2


def test_the_index_is_small_and_the_fingerprint_does_not_depend_on_its_types(shards: Path) -> None:
    dataset = tar_shards(str(shards))
    (file,) = indexes(shards)
    with np.load(file) as index:
        assert {name: index[name].dtype.name for name in ("shard", "first", "length", "ends")} == {
            "shard": "uint8",
            "first": "uint16",
            "length": "uint16",
            "ends": "uint8",
        }
        digest = hashlib.sha256(b"train-0.tar\0train-1.tar")
        for name, kind in (
            ("label", "<i8"),
            ("ends", "<i8"),
            ("joined", "u1"),
            ("shard", "<i8"),
        ):
            digest.update(index[name].astype(kind).tobytes())
    assert dataset.fingerprint == digest.hexdigest()


def test_an_archive_that_has_changed_is_read_again(shards: Path, num_scans: list[int]) -> None:
    before = tar_shards(str(shards))
    write(shards / "train-1.tar", [("e.png", b"image"), ("e.cls", b"0")])
    after = tar_shards(str(shards))
    assert names(after)[3:] == ["train-1.tar: e"]
    assert len(num_scans) == 5  # one of them wrote the archive
    assert after.fingerprint != before.fingerprint
    assert len(indexes(shards)) == 1


def test_the_index_may_be_kept_elsewhere(shards: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "index.npz"
    assert not tar_shards(str(shards), index=str(elsewhere)).remarks
    assert not indexes(shards)
    assert len(tar_shards(str(shards), index=str(elsewhere))) == 5
    with pytest.raises(
        DataError, match=r"sample b has no member .png beside"
    ):  # the index is of other extensions
        tar_shards(str(shards), ["png"], index=str(elsewhere))


def test_the_fingerprints_are_of_the_data_and_not_of_their_place(
    shards: Path, tmp_path: Path, png: Png, pixels: NDArray[np.uint8]
) -> None:
    def fingerprints(folder: Path) -> tuple[str, str]:
        dataset = tar_shards(str(folder))
        return dataset.fingerprint, dataset.content_fingerprint

    first = fingerprints(shards)
    moved = shards.rename(tmp_path / "moved")
    assert fingerprints(moved) == first
    content = (moved / "train-1.tar").read_bytes()
    other = content.replace(png(pixels[3:]), bytes(len(png(pixels[3:]))))
    (moved / "train-1.tar").write_bytes(other)
    names, images = fingerprints(moved)
    assert names == first[0]
    assert images != first[1]


def test_an_image_may_be_repaired_in_an_archive_that_is_packed_again(tmp_path: Path, png: Png) -> None:
    def fingerprint_with(first_image: bytes, second: bytes = b"another") -> tuple[str, str]:
        write(
            tmp_path / "a.tar", [("a.png", first_image), ("a.cls", b"0"), ("b.png", second), ("b.cls", b"1")]
        )
        dataset = tar_shards(str(tmp_path / "a.tar"))
        return dataset.fingerprint, dataset.content_fingerprint

    before, after = fingerprint_with(b"cut"), fingerprint_with(b"a whole image")
    assert after[0] == before[0]
    assert is_repaired(before[1], after[1], [[0]])
    assert not is_repaired(before[1], after[1], [[1]])
    assert not is_repaired(before[1], fingerprint_with(b"a whole image", b"of another size")[1], [[0]])


def test_an_archive_that_changes_in_mid_run_spoils_its_samples_alone(shards: Path) -> None:
    source = PreprocessedSamples(tar_shards(str(shards)), (Decode(), Resize(8, 8)), 0, 0.2)
    source.sample(3, 0, training=True)
    with open(shards / "train-1.tar", "r+b") as file:
        file.truncate(600)
    with pytest.raises(BadSample, match=r"train-1.tar has changed since the run began; restore it"):
        source.sample(3, 0, training=True)
    source.sample(0, 0, training=True)


def test_more_archives_than_may_be_open_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(7):
        write(tmp_path / f"{number}.tar", [("a.png", b"%d" % number), ("a.cls", b"0")])
    monkeypatch.setattr(shards_module, "MOST_OPEN", 3)
    num_before = len(os.listdir("/proc/self/fd"))
    dataset = tar_shards(str(tmp_path))
    order = np.random.default_rng(0).integers(0, 7, 40).tolist()
    assert [dataset.read(i)[0] for i in order] == [b"%d" % i for i in order]
    assert len(os.listdir("/proc/self/fd")) == num_before + 3


def test_a_directory_with_parts_of_the_data_is_refused(tmp_path: Path) -> None:
    for name in ("train-0.tar", "val-0.tar"):
        write(tmp_path / name, [("a.png", b"image"), ("a.cls", b"0")])
    with pytest.raises(
        DataError, match=r"parts of the data, such as train-0.tar and val-0.tar; set data.args"
    ):
        tar_shards(str(tmp_path))
    assert len(tar_shards(str(tmp_path / "train-*"))) == 1


def test_names_of_classes_may_be_given(shards: Path) -> None:
    dataset = tar_shards(str(shards), class_names=["cat", "dog", "emu", "fox"])
    assert (dataset.num_classes, dataset.class_names) == (4, ("cat", "dog", "emu", "fox"))
    for given in ({"num_classes": 2}, {"class_names": ["cat"]}, {"num_classes": 4, "class_names": ["a"] * 3}):
        with pytest.raises(DataError, match=r"its labels go up to 2; give data.args as many class_names"):
            tar_shards(str(shards), **given)


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([("a.png", b"x")], r"sample a has no member .cls beside it, but a.png; set data.args.ext"),
        (
            [("f/a.cls", b"1"), ("b.png", b"x")],
            r"sample f/a has no member .png, .jpg, .jpeg beside it, but f/a.cls",
        ),
        (
            [("a.png", b"x"), ("b.png", b"x"), ("a.cls", b"1"), ("b.cls", b"1")],
            r"sample a has no member .cls beside it, because a.cls is elsewhere in the archive; the members",
        ),
        (
            [("a.png", b"x"), ("a.cls", b"1"), ("b.1.png", b"x"), ("b.cls", b"1")],
            r"sample b has no .*, but b.1.png, b.cls \(.1.png is one extension, as in WebDataset\); set",
        ),
        (
            [("n.0.a.jpg", b"x"), ("n.0.a.cls", b"1")],
            r"no member .png, .jpg, .jpeg in .* \(.0.a.jpg is one extension, as in WebDataset\)",
        ),
        ([("a.png", b"x"), ("a.cls", b"cat")], r"a.cls holds b'cat', allowed: a class, .* 0 or more"),
        ([("a.png", b"x"), ("a.cls", b"-1")], r"holds b'-1', allowed"),
        ([("a.png", b"x"), ("a.cls", b"9" * 50)], r"holds b'9999"),
        ([("a.png", b"x"), ("a.cls", b"1" + b" " * 30 + b"7")], r"holds b'1   "),
        ([("a.png", b"x"), ("a.cls", b"1" + b" " * 5000 + b"7")], r"holds b'1', allowed"),
        (
            [("a.cls", b"1"), ("a.jpg", b"photo"), ("a.png", b"mask")],
            r"sample a has both a.jpg and a.png; set data.args.extensions to those of the images to train on",
        ),
        (
            [("f/a.jpg", b"x"), ("f/a.cls", b"1")] * 2,
            r"sample f/a has f/a.jpg twice; give each",
        ),
        (
            [("a.jpg", b"x"), ("a.JPG", b"x"), ("a.cls", b"1")],
            r"sample a has both a.jpg and a.JPG; give",
        ),
        ([("a.cls", b"1"), ("a.cls", b"2"), ("a.jpg", b"x")], r"sample a has a.cls twice; give each sample"),
        ([("notes.txt", b"x")], r"no member .png, .jpg, .jpeg in .*/0.tar, but notes"),
    ],
)
def test_samples_that_are_not_whole_are_named(tmp_path: Path, members: Members, reason: str) -> None:
    write(tmp_path / "0.tar", members)
    with pytest.raises(DataError, match=reason):
        tar_shards(str(tmp_path))
    assert not indexes(tmp_path)


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        (tarfile.LNKTYPE, {"linkname": "a.png"}, "a hard link to a.png, .*; pack .* with --hard-dereference"),
        (tarfile.SYMTYPE, {"linkname": "/a.png"}, "a symbolic link to /a.png, .* with --dereference"),
        (tarfile.FIFOTYPE, {}, "no file, allowed: a plain file; pack the archive without it"),
    ],
)
def test_members_that_are_no_plain_files_are_refused(
    tmp_path: Path, kind: bytes, options: dict[str, str], reason: str
) -> None:
    path = write(tmp_path / "0.tar", [("a.png", b"x"), ("a.cls", b"1"), ("b.cls", b"1")])
    with tarfile.open(path, "a") as archive:
        for name in ("b.txt", "b.png"):  # one of them is no part of a sample
            info = tarfile.TarInfo(name)
            info.type = kind
            for option, value in options.items():
                setattr(info, option, value)
            archive.addfile(info)
    with pytest.raises(DataError, match=rf"0.tar: b.png is {reason}"):
        tar_shards(str(tmp_path))


def test_a_class_may_have_spaces_around_it(tmp_path: Path) -> None:
    write(tmp_path / "0.tar", [("a.png", b"x"), ("a.cls", b" " * 30 + b"2\n" + b" " * 30)])
    assert tar_shards(str(tmp_path)).labels.tolist() == [2]


def test_one_of_several_images_may_be_named(tmp_path: Path) -> None:
    write(tmp_path / "0.tar", [("a.cls", b"1"), ("a.jpg", b"photo"), ("a.png", b"mask"), ("a.seg.jpg", b"x")])
    assert tar_shards(str(tmp_path), extensions=["jpg"]).read(0) == (b"photo", 1)


def test_archives_that_cat_has_joined_are_refused(tmp_path: Path, shards: Path) -> None:
    joined = b"".join(path.read_bytes() for path in sorted(shards.glob("*.tar")))
    (tmp_path / "joined.tar").write_bytes(joined)
    with pytest.raises(DataError, match=r"there is more after its end at byte \d+: tar --concatenate joins"):
        tar_shards(str(tmp_path / "joined.tar"))
    (tmp_path / "long.tar").write_bytes((shards / "train-0.tar").read_bytes() + bytes(3 * 2**20))
    assert len(tar_shards(str(tmp_path / "long.tar"))) == 3


@pytest.mark.parametrize("name", ["b.tar.gz", "b.TGZ", "b.tar.zst"])
def test_compressed_archives_in_a_directory_are_not_left_out(shards: Path, name: str) -> None:
    (shards / "train-1.tar").rename(shards / "train-1.TAR")
    assert len(tar_shards(str(shards))) == 5
    (shards / name).write_bytes(b"compressed")
    with pytest.raises(DataError, match=rf"{shards / name} is compressed, .*; unpack it, or set data.args"):
        tar_shards(str(shards))
    assert len(tar_shards(str(shards / "train-*"))) == 5


def test_what_is_no_archive_is_explained(tmp_path: Path, shards: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path, shards / "val-*.tar"):
        with pytest.raises(
            DataError, match=r"is no file and holds no files \*.tar; set data.args.path to a file"
        ):
            tar_shards(str(path))
    whole = (shards / "train-0.tar").read_bytes()
    for content in (b"", b"\x1f\x8b compressed", whole[:1300]):
        (tmp_path / "wrong.tar").write_bytes(content)
        with pytest.raises(DataError, match=r"wrong.tar is no tar archive, or is damaged .*; restore it"):
            tar_shards(str(tmp_path / "wrong.tar"))
    with pytest.raises(DataError, match=r"tar_shards: data.args.extensions: got 'png', allowed: a list"):
        tar_shards(str(shards), extensions="png")

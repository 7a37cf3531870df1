"""Shards: large files of many encoded images, which are read at random by their places in an index."""

from __future__ import annotations

import glob
import hashlib
import os
import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.content import content_digest
from hpcbal.data.dataset import UnusableSampleError, evenly
from hpcbal.data.datasets.arguments import check_classes, path_of
from hpcbal.data.datasets.image_folder import DIGEST_FILES, OF_TRAINING, OF_VALIDATION
from hpcbal.data.datasets.index import Arrays, Names
from hpcbal.data.spec import LabelSpec
from hpcbal.errors import DataError

MOST_OPEN = 32
"""Files that a process holds open."""

T = TypeVar("T")


class ShardFiles(Generic[T]):
    """The files of a dataset, in the order of their names; at most `MOST_OPEN` of them are open.

    Attributes:
        paths: of all files.
        stamps: bytes and the time of the last change of each, shape (num_files, 2).
        remarks: sentences for warnings.

    Args:
        dataset: name of the dataset, for messages.
        paths: of the files.
        handle: what a file that is open is read with.
        remarks: sentences for warnings.

    Raises:
        DataError: if one of them cannot be read.
    """

    def __init__(
        self,
        dataset: str,
        paths: Sequence[Path],
        handle: Callable[[FileIO], T],
        remarks: tuple[str, ...] = (),
    ) -> None:
        self._open: dict[int, tuple[FileIO, T]] = {}  # the one used last at the end
        self.paths, self._handle, self.remarks = tuple(paths), handle, remarks
        self.stamps = np.array([_stamp(dataset, path) for path in paths], np.int64)

    def __del__(self) -> None:
        for file, _ in self._open.values():
            file.close()

    @property
    def folder(self) -> Path:
        """The folder of the first file, for the index."""
        return self.paths[0].parent

    @property
    def names(self) -> list[str]:
        """Names of the files."""
        return [path.name for path in self.paths]

    def opened(self, number: int) -> T:
        """Return what a file is read with.

        Raises:
            UnusableSampleError: if it is another file than the index is of.
        """
        if number not in self._open:
            if len(self._open) == MOST_OPEN:
                self._open.pop(next(iter(self._open)))[0].close()
            file = open(self.paths[number], "rb", buffering=0)  # noqa: SIM115 - it stays open
            try:
                self._check_unchanged(number, file)
                self._open[number] = file, self._handle(file)
            except BaseException:
                file.close()
                raise
        self._open[number] = self._open.pop(number)
        return self._open[number][1]

    def check_unchanged(self, number: int) -> None:
        """Check an open file again, after it was read.

        Raises:
            UnusableSampleError: if it has been written to.
        """
        self._check_unchanged(number, self._open[number][0])

    def _check_unchanged(self, number: int, file: FileIO) -> None:
        stat = os.fstat(file.fileno())
        if (stat.st_size, stat.st_mtime_ns) != tuple(self.stamps[number]):
            raise UnusableSampleError(
                f"{self.paths[number].name} has changed since the run began; restore it, or start again"
            )


def _stamp(dataset: str, path: Path) -> tuple[int, int]:
    try:
        stat = path.stat()
    except OSError as error:
        raise DataError(f"{dataset}: {path} cannot be read: {error.strerror}") from error
    return stat.st_size, stat.st_mtime_ns


def shard_files(
    dataset: str, path: str, shown: str, is_shard: Callable[[str], bool], handle: Callable[[FileIO], T]
) -> ShardFiles[T]:
    """Find the files that `data.args.path` names.

    Args:
        dataset: name of the dataset, for messages.
        path: a file, a directory with files, or a pattern such as `photos/train-*.tar`.
        shown: how the names of such files look, for messages: `*.tar`.
        is_shard: whether a file of a directory with this name is one of them.
        handle: see `ShardFiles`.

    Returns: the files; with a remark if a file or a pattern is only a part of those that their names count.

    Raises:
        DataError: if there are none, they cannot be read, or a directory holds parts of the data, or lacks
            some of it.
    """
    root = path_of(dataset, "path", path)
    remarks: tuple[str, ...] = ()
    if root.is_dir():
        others = [each for each in root.iterdir() if each.name[0] != "."]
        paths = sorted(each for each in others if is_shard(each.name))
        _check_unpacked(dataset, root, others, is_shard)
        _check_one_part(dataset, root, paths)
        missing = _missing(paths)
        if missing:
            raise DataError(
                f"{dataset}: {root} lacks {missing}; restore what is missing, or set data.args.path to a "
                "pattern for the files that there are"
            )
    else:
        paths = [root] if root.exists() else sorted(map(Path, glob.glob(str(root))))
        missing = _missing(paths)
        if missing:
            remarks = (f"{dataset}: {path} finds no {missing}, so the samples in there are left out",)
    if not paths:
        where = f" (from {Path.cwd()})" if not root.is_absolute() else ""
        raise DataError(
            f"{dataset}: {path}{where} is no file and holds no files {shown}; set data.args.path to a file, "
            "to a directory of such files, or to a pattern such as train-*"
        )
    return ShardFiles(dataset, paths, handle, remarks)


_COUNTED = re.compile(r"(.*)-(\d{5,})-of-(\d{5,})")
"""Beginning of the name of a file that is one of so many, numbered from 0 or from 1."""
_MOST_COUNTED = 10**6


def _missing(paths: Iterable[Path]) -> str:
    """Name the files that are not there, by the names of those that are; empty if all are."""
    numbers: dict[tuple[Path, str, str], set[int]] = {}
    for path in paths:
        found = _COUNTED.match(path.name)
        if found and int(found[3]) <= _MOST_COUNTED:
            numbers.setdefault((path.parent, found[1], found[3]), set()).add(int(found[2]))
    missing = []
    for (_, start, total), present in numbers.items():
        first = 1 if int(total) in present else 0
        lacking = sorted(set(range(first, first + int(total))) - present)
        missing += [f"{start}-{number:0{len(total)}}-of-{total}" for number in lacking]
    return ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")


_COMPRESSED = re.compile(r"(.*)\.(gz|bz2|xz|zst|lz4|zip)$|(.*\.t)(?:gz|bz2?|xz|zst)$", re.IGNORECASE)


def _check_unpacked(dataset: str, root: Path, paths: Iterable[Path], is_shard: Callable[[str], bool]) -> None:
    """Refuse a directory with files that are shards as soon as they are unpacked."""
    for path in sorted(paths):
        found = _COMPRESSED.match(path.name)
        if found and is_shard(found[1] or f"{found[3]}ar"):
            raise DataError(
                f"{dataset}: {path} is compressed, allowed: files that can be read at any place; unpack it, "
                f"or set data.args.path to a pattern for the other files in {root}"
            )


def _check_one_part(dataset: str, root: Path, paths: Sequence[Path]) -> None:
    """Refuse to train on all files of a directory if some of them are for validation or test."""
    words = {path: set(re.split(r"[^a-z]+", path.name.lower())) for path in paths}
    training, held_out = (
        next((path for path in paths if words[path] & set(names)), None)
        for names in (OF_TRAINING, OF_VALIDATION)
    )
    if training is not None and held_out is not None:
        raise DataError(
            f"{dataset}: {root} holds parts of the data, such as {training.name} and {held_out.name}; set "
            "data.args.path to a pattern for those that train, such as train-*, and data.validation: {args: "
            "{path: ...}} to one for the others"
        )


class Images(Protocol):
    """Reads the images of a dataset by number."""

    num_digested: int
    """Images at most that are read to know the data again."""

    def image(self, sample_id: int) -> bytes:
        """The bytes of an image."""
        ...

    def where(self, sample_id: int) -> str:
        """The file, and the sample's name in it."""
        ...


class Ranges:
    """Images that are ranges of bytes in files.

    Args:
        files: read with their descriptors.
        index: of each sample `shard`, the number of its file, `first` and `length`, bytes; and `joined` and
            `ends`, the names of samples in their files, unless they are records without names.
    """

    num_digested = DIGEST_FILES

    def __init__(self, files: ShardFiles[int], index: Arrays) -> None:
        self._files, self._shard = files, index["shard"]
        self._first, self._length = index["first"], index["length"]
        self._names = Names(index["joined"], index["ends"]) if "ends" in index else None

    def image(self, sample_id: int) -> bytes:
        """The bytes of an image."""
        shard = int(self._shard[sample_id])
        descriptor = self._files.opened(shard)
        content = os.pread(descriptor, int(self._length[sample_id]), int(self._first[sample_id]))
        self._files.check_unchanged(shard)
        return content

    def where(self, sample_id: int) -> str:
        """The file, and the sample's name or number in it."""
        shard = self._shard[sample_id]
        name = (
            f"record {sample_id - int(np.searchsorted(self._shard, shard))}"
            if self._names is None
            else self._names[sample_id]
        )
        return f"{self._files.paths[shard].name}: {name}"


_SHRUNK = ("shard", "first", "length", "ends")
"""Arrays of the index of `Ranges` that every rank holds in the smallest type for their values."""


def ranges_index(places: array[int], names: Sequence[str] | None = None) -> Arrays:
    """Return the index of `Ranges`, and the `label` of each sample.

    Args:
        places: of type "q": number of the file, first byte, length in bytes, and class, sample by sample.
        names: of the samples in their files; None: they are records, which have numbers.
    """
    shard, first, length, label = np.frombuffer(places, np.int64).reshape(-1, 4).T
    found = {"shard": shard, "first": first, "length": length, "label": np.ascontiguousarray(label)}
    if names is not None:
        joined = Names.of([names])
        found |= {"joined": joined.joined, "ends": joined.ends}
    return {
        name: each.astype(np.min_scalar_type(each.max())) if name in _SHRUNK else each
        for name, each in found.items()
    }


class ShardSamples:
    """Samples of shards, in the order of the files' names and of their places.

    Attributes:
        num_classes: of the labels, or of the names.
        class_names: if they are given, or the files have some.
        sample_spec: None: samples are encoded images, so the preprocessing starts with `decode`.
        label_spec: one class.
        labels: the class of each sample, shape (num_samples,).
        fingerprint: digest of the names of the files, of the labels, and of everything in the index but
            places and sizes of images: names of samples.
        content_fingerprint: digest of the sizes of images, and of the first 64 KiB of some.
        is_counted: whether `num_classes` is only the largest label + 1.
        remarks: sentences for warnings.
    """

    sample_spec = None

    def __init__(
        self,
        shown: str,
        file_names: Sequence[str],
        index: Arrays,
        images: Images,
        num_classes: int | None,
        class_names: Sequence[str] | None,
        remarks: tuple[str, ...],
    ) -> None:
        """Number the classes.

        Args:
            shown: what names the dataset, for messages.
            file_names: names of the files.
            index: the `label` of each sample, and what `images` needs; if the files name their classes, what
                `named_classes` or `texts_as_classes` returns.
            images: reads them.
            num_classes, class_names: as in `data.args`.
            remarks: sentences for warnings.

        Raises:
            DataError: if `num_classes` and `class_names` are no such things, there is a label that is no
                class, or another number of names.
        """
        check_classes(shown.partition(":")[0], num_classes, class_names)
        self._images, self.remarks = images, remarks
        self.label_spec = LabelSpec()
        self.labels: NDArray[np.int64] = index["label"]
        names = class_names
        if "class_ends" in index:
            stored = Names(index["class_joined"], index["class_ends"])
            own = [stored[number] for number in range(len(stored))]
            names = own if class_names is None else class_names
            if index["are_texts"] and class_names is not None:
                self.labels = _numbered(self.labels, own, class_names, shown)
        most = int(self.labels.max()) + 1
        self.is_counted = num_classes is None and names is None
        if num_classes is None:
            num_classes = most if names is None else len(names)
        if most > num_classes or (names is not None and len(names) != num_classes):
            named = "" if names is None else f" and {len(names)} names of classes"
            raise DataError(
                f"{shown} has {num_classes} classes{named}, but its labels go up to {most - 1}; give "
                "data.args as many class_names as num_classes, and a class for each label"
            )
        self.num_classes = num_classes
        if names is not None:
            self.class_names = tuple(names)
        digest = hashlib.sha256("\0".join(file_names).encode(errors="surrogateescape"))
        digest.update(np.ascontiguousarray(self.labels).data)
        self._lengths = index.get("length")
        for name in sorted(index.keys() - {"first", "length", "label"}):
            numbers = index[name].astype(np.int64) if name in _SHRUNK else index[name]
            digest.update(np.ascontiguousarray(numbers).data)
        self.fingerprint = digest.hexdigest()

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def content_fingerprint(self) -> str:
        found = {}
        for sample_id in evenly(len(self), self._images.num_digested):
            try:
                found[sample_id] = self._images.image(sample_id)[: 2**16]
            except (OSError, UnusableSampleError):  # a broken sample, which a run may have some of
                found[sample_id] = b"cannot be read"
        return content_digest(found, self._lengths)

    def read(self, sample_id: int) -> tuple[bytes, int]:
        """The bytes of one image, and its class."""
        return self._images.image(sample_id), int(self.labels[sample_id])

    def describe(self, sample_id: int) -> str:
        """The file, and the sample's name in it."""
        return self._images.where(sample_id)


def named_classes(names: Sequence[str]) -> Arrays:
    """Return what an index holds of the names of classes, given by number."""
    stored = Names.of([names])
    return {"class_joined": stored.joined, "class_ends": stored.ends, "are_texts": np.array(False)}


def texts_as_classes(numbers: NDArray[np.int64], texts: Sequence[str]) -> Arrays:
    """Return what an index holds of labels that are texts in the files: classes in alphabetical order.

    Args:
        numbers: for each sample the place of its label in `texts`.
        texts: all different.
    """
    names = sorted(texts)
    number_of = {name: number for number, name in enumerate(names)}
    label = np.array([number_of[text] for text in texts], np.int64)[numbers]
    return {**named_classes(names), "are_texts": np.array(True), "label": label}


def _numbered(
    labels: NDArray[np.int64], own: Sequence[str], class_names: Sequence[str], shown: str
) -> NDArray[np.int64]:
    unknown = [name for name in own if name not in class_names]
    if unknown:
        raise DataError(
            f"{shown} has the label {unknown[0]!r}, allowed: those in data.args.class_names: "
            f"{', '.join(class_names[:10])}"
        )
    return np.array([class_names.index(name) for name in own], np.int64)[labels]

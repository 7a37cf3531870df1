"""Images, or several named arrays, and labels in one HDF5 file; processes open it without locks."""

from __future__ import annotations

import hashlib
import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.content import content_digest
from hpcbal.data.dataset import Dataset
from hpcbal.data.datasets.arguments import path_of
from hpcbal.data.datasets.hdf5_reading import (
    CACHE_BYTES,
    content_of_rows,
    member_of,
    no_labels,
    opened,
    read_labels,
)
from hpcbal.data.spec import UNNAMED, LabelSpec, SampleSpec
from hpcbal.errors import DataError

if TYPE_CHECKING:
    import h5py

log = logging.getLogger(__name__)


class Hdf5Dataset:
    """Rows of one HDF5 dataset: equal arrays, encoded images, or arrays of different shapes.

    Attributes:
        num_classes: attribute `num_classes` of the labels, else the largest label + 1.
        class_names: attribute `class_names` of the labels, or the texts that they are; None without names.
        remarks: how labels were read that are no integers.
        sample_spec: spec of one array; None for encoded images.
        label_spec: one class.
        labels: the class of each sample, shape (num_samples,).
        fingerprint: digest of shapes and labels.
        content_fingerprint: digest of the names of classes, and of the values of at most 64 rows.
    """

    def __init__(self, path: Path, images: str, labels: str | None, shapes: str | None) -> None:
        """Read labels and shapes, then close the file; see `hdf5` for the arguments.

        Without `labels`, all samples have class 0.
        """
        import h5py

        self._path, self._images_name = path, images
        self._file: h5py.File | None = None
        self._rows: h5py.Dataset | None = None
        self._file_pid = -1
        with opened(path) as file:
            stored = member_of(file, path, images)
            found = no_labels(stored)
            if labels is not None:
                found = read_labels(member_of(file, path, labels), f"{path}:{labels}")
            self.num_classes, self.labels = found.num_classes, found.numbers
            self.class_names, self.remarks = found.names, found.remarks
            if len(stored.shape) < 1 or stored.shape[0] != len(self.labels):
                raise DataError(
                    f"{path}: {images} has shape {stored.shape} and {labels} {len(self.labels)} rows; "
                    "allowed: as many rows as labels, at least 1"
                )
            if shapes is not None and h5py.check_vlen_dtype(stored.dtype) is None:
                raise DataError(f"hdf5: {path}:{images} holds arrays of one shape: remove data.args.shapes")
            self._shapes = _read_shapes(member_of(file, path, shapes), len(self.labels)) if shapes else None
            self.sample_spec = _sample_spec(stored, self._shapes, f"{path}:{images}")
            self._adds_channel = _is_gray(stored)
            self._cache_bytes = _cache_bytes(stored, path)
            names = repr(self.class_names).encode()
            self.content_fingerprint = content_digest(content_of_rows(stored), of_all=names)
            facts: tuple[Any, ...] = (stored.shape, str(stored.dtype), self.labels.tolist())
        if found.are_texts:  # of numbers the names are left out, as they were before there were names
            facts = (*facts, self.class_names)
        self.label_spec = LabelSpec()
        self.fingerprint = hashlib.sha256(repr(facts).encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.labels)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None, "_rows": None, "_file_pid": -1}

    def read(self, sample_id: int) -> tuple[NDArray[Any] | bytes, int]:
        """One row and its class."""
        row = self._opened_rows()[sample_id]
        label = int(self.labels[sample_id])
        if self.sample_spec is None:
            return row.tobytes(), label
        if self._shapes is not None:
            return row.reshape(self._shapes[sample_id]), label
        return row[:, :, np.newaxis] if self._adds_channel else row, label

    def describe(self, sample_id: int) -> str:
        """File, dataset and row."""
        return f"{self._path}:{self._images_name}[{sample_id}]"

    def close(self) -> None:
        """Close the file if this process has opened it; the next read opens it again."""
        if self._file is not None and self._file_pid == os.getpid():
            self._file.close()
        self._file = self._rows = None

    def _opened_rows(self) -> h5py.Dataset:
        # A handle from before a fork shares its file position with the parent: never use it.
        if self._rows is None or self._file_pid != os.getpid():
            self._file = opened(self._path, self._cache_bytes)
            self._rows = member_of(self._file, self._path, self._images_name)
            self._file_pid = os.getpid()
        return self._rows


def hdf5(
    path: str,
    images: str | Mapping[str, str] = "images",
    labels: str | Mapping[str, str] = "labels",
    shapes: str | None = None,
) -> Dataset:
    """Samples of an HDF5 file.

    Args:
        path: the file; a relative path starts at the current directory.
        images: dataset (num_samples, ...) of numbers; (num_samples, height, width) gets a channel axis. Or
            (num_samples,) of variable-length uint8: encoded images, the bytes of one file each.
        labels: dataset (num_samples,) of integers >= 0, or of whole numbers, booleans or text; or one-hot
            rows (num_samples, num_classes). Text is numbered in alphabetical order, or in that of its
            attribute `class_names`.
        shapes: dataset (num_samples, num_axes) of integers: `images` then holds variable-length arrays that
            get these shapes.

    `images` and `labels` may also be mappings from the names of arrays and labels to datasets; see
    `NamedHdf5Dataset`.

    Raises:
        DataError: if the file or dataset does not exist, is locked, or shapes do not fit.
    """
    place = path_of("hdf5", "path", path)
    if isinstance(images, str) and isinstance(labels, str):
        return Hdf5Dataset(place, images, labels, shapes)
    if shapes is not None:
        raise DataError(
            "hdf5: data.args.shapes: got a dataset, allowed with several named arrays: leave it out"
        )
    return NamedHdf5Dataset(place, images, labels)


def _read_shapes(stored: h5py.Dataset, num_samples: int) -> NDArray[np.int64]:
    if stored.ndim != 2 or len(stored) != num_samples or stored.dtype.kind not in "iu":
        raise DataError(
            f"hdf5: {stored.name}: got shape {stored.shape} of {stored.dtype}, allowed: ({num_samples}, "
            "num_axes) integers"
        )
    return np.asarray(stored[()], np.int64)


def _sample_spec(stored: h5py.Dataset, shapes: NDArray[np.int64] | None, where: str) -> SampleSpec | None:
    import h5py

    element = h5py.check_vlen_dtype(stored.dtype)
    if element is None:
        channel = (1,) if _is_gray(stored) else ()
        return SampleSpec.of((*stored.shape[1:], *channel), stored.dtype.name)
    if stored.ndim != 1:
        raise DataError(
            f"hdf5: {where}: got shape {stored.shape}, allowed: (num_samples,) of variable length"
        )
    if shapes is not None:
        least, most = shapes.min(axis=0).tolist(), shapes.max(axis=0).tolist()
        shape = tuple(low if low == high else None for low, high in zip(least, most, strict=True))
        largest = int(shapes.prod(axis=1).max()) * np.dtype(element).itemsize
        return SampleSpec.of(shape, np.dtype(element).name, largest)
    if element != np.uint8:
        raise DataError(
            f"hdf5: {where}: got variable-length {element}, allowed: uint8 (encoded images), or name the "
            "dataset with the shapes in data.args.shapes"
        )
    return None


def _is_gray(stored: h5py.Dataset) -> bool:
    return len(stored.shape) == 3


def _cache_bytes(stored: h5py.Dataset, path: Path) -> int:
    """Size of a chunk cache for at least two chunks; warns if random reads unpack far too much."""
    if stored.chunks is None:
        return CACHE_BYTES
    chunk_bytes: int = math.prod(stored.chunks) * stored.dtype.itemsize
    rows = stored.chunks[0]
    if rows > 1 and stored.nbytes > CACHE_BYTES:
        log.warning(
            "%s: %s is stored in chunks of %d samples (%.1f MB) and does not fit the chunk cache: each "
            "sample read in random order unpacks a whole chunk; chunks of one sample are faster",
            path,
            stored.name,
            rows,
            chunk_bytes / 1e6,
        )
    return max(CACHE_BYTES, 2 * chunk_bytes)


class NamedHdf5Dataset:
    """Rows of several HDF5 datasets; see `hpcbal.data.dataset.Dataset` for the attributes.

    Arrays are as they are stored, all of one shape; variable-length uint8 are encoded images. Labels stay in
    memory: floating-point numbers are values, other labels in one axis are classes, as `hdf5` reads them.

    Args:
        path: the file.
        arrays, labels: name of a dataset, or names of datasets by the names of arrays and labels.

    Raises:
        DataError: if a dataset does not exist, or cannot be used.
    """

    def __init__(self, path: Path, arrays: str | Mapping[str, str], labels: str | Mapping[str, str]) -> None:
        self._path = path
        self._names = dict(arrays) if isinstance(arrays, Mapping) else {UNNAMED: arrays}
        given = dict(labels) if isinstance(labels, Mapping) else {UNNAMED: labels}
        self._file: h5py.File | None = None
        self._file_pid = -1
        self._labels: dict[str, NDArray[Any]] = {}
        specs: dict[str, SampleSpec | None] = {}
        of_labels: dict[str, LabelSpec] = {}
        classes: dict[str, int] = {}
        self.remarks: tuple[str, ...] = ()
        lengths: dict[str, int] = {}
        rows: dict[int, bytes] = {}
        digest = hashlib.sha256()
        with opened(path) as file:
            for name, key in self._names.items():
                stored = member_of(file, path, key)
                specs[name], lengths[key] = _spec(stored, f"{path}:{key}"), len(stored)
                for row, content in content_of_rows(stored).items():
                    rows[row] = rows.get(row, b"") + f"{name} ".encode() + content
            for name, key in given.items():
                stored = member_of(file, path, key)
                lengths[key] = len(stored)
                self._labels[name], of_labels[name], classes[name], remarks = _label(stored, f"{path}:{key}")
                self.remarks += remarks
                digest.update(np.ascontiguousarray(self._labels[name]).tobytes())
        if len({*lengths.values()}) > 1:
            found = ", ".join(f"{key}: {length}" for key, length in lengths.items())
            raise DataError(f"hdf5: {path}: numbers of rows differ ({found}), allowed: a row for each sample")
        self._length = next(iter(lengths.values()))
        self._is_named = isinstance(arrays, Mapping), isinstance(labels, Mapping)
        self.sample_spec: Any = self._one_or_named(0, specs)
        self.label_spec: Any = self._one_or_named(1, of_labels)
        self.num_classes: Any = self._one_or_named(1, classes)
        self.fingerprint = hashlib.sha256(repr((specs, of_labels, classes, lengths)).encode()).hexdigest()
        self.content_fingerprint = content_digest(rows, of_all=digest.digest())

    def _one_or_named(self, place: int, by_name: Mapping[str, Any]) -> Any:
        return by_name if self._is_named[place] else by_name[UNNAMED]

    def __len__(self) -> int:
        return self._length

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None, "_file_pid": -1}

    def read(self, sample_id: int) -> tuple[Any, Any]:
        """The row of each array, and the labels."""
        if self._file is None or self._file_pid != os.getpid():  # a handle from before a fork is shared
            self._file, self._file_pid = opened(self._path), os.getpid()
        rows = {name: self._file[key][sample_id] for name, key in self._names.items()}
        specs = self.sample_spec if self._is_named[0] else {UNNAMED: self.sample_spec}
        sample = {
            name: row.tobytes() if specs[name] is None else np.asarray(row) for name, row in rows.items()
        }
        label = {name: each[sample_id] for name, each in self._labels.items()}
        return self._one_or_named(0, sample), self._one_or_named(1, label)

    def describe(self, sample_id: int) -> str:
        """File and row."""
        return f"{self._path}[{sample_id}]"

    def close(self) -> None:
        """Close the file if this process has opened it; the next read opens it again."""
        if self._file is not None and self._file_pid == os.getpid():
            self._file.close()
        self._file = None


def _spec(stored: h5py.Dataset, where: str) -> SampleSpec | None:
    import h5py

    element = h5py.check_vlen_dtype(stored.dtype)
    if element is None:
        return SampleSpec.of(stored.shape[1:], stored.dtype.name)
    if element == np.uint8 and stored.ndim == 1:
        return None
    raise DataError(
        f"hdf5: {where}: got variable-length {element}, allowed in samples of several named arrays: arrays "
        "of one shape, or uint8 (encoded images)"
    )


def _label(stored: h5py.Dataset, where: str) -> tuple[NDArray[Any], LabelSpec, int, tuple[str, ...]]:
    """Labels, their spec, number of classes or outputs, and how they were read."""
    shape = tuple(stored.shape[1:])
    if stored.dtype.kind == "f":
        size = int(np.prod(shape, dtype=np.int64))
        return np.asarray(stored[()]), LabelSpec(shape, stored.dtype.name), size, ()
    if len(shape) > 1 or (len(shape) == 1 and stored.dtype.kind in "iu" and not _may_be_one_hot(stored)):
        values = np.asarray(stored[()], np.int64)
        return values, LabelSpec(shape), int(values.max(initial=0)) + 1, ()
    found = read_labels(stored, where)
    return found.numbers, LabelSpec(), found.num_classes, found.remarks


def _may_be_one_hot(stored: h5py.Dataset) -> bool:
    rows = np.asarray(stored[()])
    return bool(np.all((rows == 0) | (rows == 1)) and np.all(rows.sum(axis=1) == 1))

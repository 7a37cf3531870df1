"""Several arrays and labels by name in one HDF5 file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.content import content_digest
from hpcbal.data.datasets.hdf5_reading import content_of_rows, member_of, opened, read_labels
from hpcbal.data.spec import UNNAMED, LabelSpec, SampleSpec
from hpcbal.errors import DataError

if TYPE_CHECKING:
    import h5py


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

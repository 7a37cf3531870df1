"""Images and labels in one HDF5 file; each process opens it itself, without locks."""

from __future__ import annotations

import errno
import hashlib
import logging
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.dataset import evenly
from hpcbal.data.datasets.hdf5_sources import check_sources
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.errors import DataError

if TYPE_CHECKING:
    import h5py

log = logging.getLogger(__name__)

CACHE_BYTES = 64 * 2**20
"""Chunk cache per process. Samples are read in random order, so a larger cache unpacks fewer chunks."""

DIGEST_ROWS, DIGEST_BYTES = 64, 64 * 2**20
"""Rows and bytes at most that are read when a file is opened, to know it again; at least one row."""

_LOCK_ERRORS = (errno.EAGAIN, errno.ENOLCK, errno.ENOSYS, 524)  # 524: from Lustre and NFS without locks
_LOCK_WORDS = ("unable to lock file", "file locking")


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

    def __init__(self, path: Path, images: str, labels: str, shapes: str | None) -> None:
        """Read labels and shapes, then close the file; see `hdf5` for the arguments."""
        import h5py

        self._path, self._images_name = path, images
        self._file: h5py.File | None = None
        self._rows: h5py.Dataset | None = None
        self._file_pid = -1
        with _open(path) as file:
            stored = _member(file, path, images)
            found = _read_labels(_member(file, path, labels), f"{path}:{labels}")
            self.num_classes, self.labels = found.num_classes, found.numbers
            self.class_names, self.remarks = found.names, found.remarks
            if len(stored.shape) < 1 or stored.shape[0] != len(self.labels):
                raise DataError(
                    f"{path}: {images} has shape {stored.shape} and {labels} {len(self.labels)} rows; "
                    "allowed: as many rows as labels, at least 1"
                )
            if shapes is not None and h5py.check_vlen_dtype(stored.dtype) is None:
                raise DataError(f"hdf5: {path}:{images} holds arrays of one shape: remove data.args.shapes")
            self._shapes = _read_shapes(_member(file, path, shapes), len(self.labels)) if shapes else None
            self.sample_spec = _sample_spec(stored, self._shapes, f"{path}:{images}")
            self._adds_channel = _is_gray(stored)
            self._cache_bytes = _cache_bytes(stored, path)
            self.content_fingerprint = _digest_of_rows(stored, self.class_names)
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
            self._file = _open(self._path, self._cache_bytes)
            self._rows = _member(self._file, self._path, self._images_name)
            self._file_pid = os.getpid()
        return self._rows


def hdf5(path: str, images: str = "images", labels: str = "labels", shapes: str | None = None) -> Hdf5Dataset:
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

    Raises:
        DataError: if the file or dataset does not exist, is locked, or shapes do not fit.
    """
    return Hdf5Dataset(Path(path).expanduser(), images, labels, shapes)


def _open(path: Path, cache_bytes: int = CACHE_BYTES) -> h5py.File:
    import h5py

    if not path.is_file():
        where = f" (from {Path.cwd()})" if not path.is_absolute() else ""
        raise DataError(f"hdf5: {path}{where} is not a file; set data.args.path to an HDF5 file")
    try:
        return h5py.File(path, "r", locking=False, rdcc_nbytes=cache_bytes)
    except (OSError, ValueError) as error:
        hint = ""
        is_lock = any(words in str(error) for words in _LOCK_WORDS)
        if is_lock or getattr(error, "errno", None) in _LOCK_ERRORS:
            hint = "; the file system refuses locks: start again with HDF5_USE_FILE_LOCKING=FALSE"
        raise DataError(f"hdf5: {path} cannot be opened: {error}{hint}") from error


def _member(file: h5py.File, path: Path, name: str) -> h5py.Dataset:
    import h5py

    member = file.get(name)
    if isinstance(member, h5py.Dataset):
        check_sources(member)
    else:
        found: list[str] = []
        file.visititems(lambda key, item: found.append(key) if isinstance(item, h5py.Dataset) else None)
        raise DataError(f"hdf5: {path}: no dataset {name!r}, there are: {', '.join(found) or 'none'}")
    return member


@dataclass(frozen=True)
class _Labels:
    """The class of each row, the number of classes, their names if they have any, and how they were read."""

    numbers: NDArray[np.int64]
    num_classes: int
    names: tuple[str, ...] | None
    remarks: tuple[str, ...]
    are_texts: bool = False


def _read_labels(stored: h5py.Dataset, where: str) -> _Labels:
    """Read labels in any form that has one meaning: numbers, one-hot rows, booleans or text."""
    values = np.asarray(stored[()])
    given = stored.attrs.get("class_names")
    names = None if given is None else _texts(np.asarray(given))
    remark, are_texts = "", False
    if values.ndim == 2 and 1 in values.shape:
        values = values.reshape(-1)
    if values.ndim == 2 and values.dtype.kind in "biuf" and _is_one_hot(values):
        remark = f"read as one-hot rows: the class is the column of the 1, of {values.shape[1]}"
        num_columns, values = values.shape[1], values.argmax(axis=1)
    else:
        num_columns = 0
    if values.ndim == 1 and values.dtype.kind in "OSU" and len(values):
        texts = _texts(values)
        unknown = sorted(set(texts) - set(names)) if names is not None else []
        if unknown:
            raise DataError(
                f"hdf5: {where}: got the label {unknown[0]!r}, allowed: those in its attribute class_names: "
                f"{', '.join((names or ())[:10])}"
            )
        names = names or tuple(sorted(set(texts)))
        remark = f"read as text: class 0 is {names[0]!r}, class {len(names) - 1} is {names[-1]!r}"
        number_of = {name: number for number, name in enumerate(names)}
        values = np.array([number_of[text] for text in texts], np.int64)
        are_texts = True
    if values.ndim == 1 and values.dtype.kind == "b":
        remark, values = "read as booleans: class 0 is false, class 1 is true", values.astype(np.int64)
    if values.ndim == 1 and values.dtype.kind in "uf":
        exact = values.astype(np.float64)
        is_usable = (np.abs(exact) < 2.0**63) & (exact == np.floor(exact))  # neither inf nor NaN
        if not is_usable.all():
            row = int(is_usable.argmin())
            raise DataError(
                f"hdf5: {where}: row {row} holds {values[row]}, allowed: whole numbers from 0, which are the "
                "numbers of classes; values to predict need a dataset of your own"
            )
    if values.ndim == 1 and values.dtype.kind == "f" and len(values):
        remark, values = "read as whole numbers, though stored as floats", values.astype(np.int64)
    if values.ndim != 1 or not len(values) or values.dtype.kind not in "iu":
        raise DataError(
            f"hdf5: {where}: got shape {stored.shape} of {stored.dtype}, allowed: (num_samples,) integers, "
            "whole numbers, booleans or text, or one-hot rows (num_samples, num_classes)"
        )
    labels = values.astype(np.int64)
    least = max(num_columns, len(names or ()), int(labels.max()) + 1)
    num_classes = int(stored.attrs.get("num_classes", least))
    if labels.min() < 0 or labels.max() >= num_classes:
        remedy = "raise its attribute num_classes, or number the classes from 0 without gaps"
        if labels.min() < 0:
            remedy = "number the classes from 0, and leave out samples without a class"
        raise DataError(
            f"hdf5: {where}: got labels {labels.min()}..{labels.max()}, allowed: 0..{num_classes - 1}; "
            f"{remedy}"
        )
    return _Labels(labels, num_classes, names, (f"{where}: {remark}",) if remark else (), are_texts)


def _is_one_hot(rows: NDArray[Any]) -> bool:
    return bool(np.all((rows == 0) | (rows == 1)) and np.all(rows.sum(axis=1) == 1))


def _texts(values: NDArray[Any]) -> tuple[str, ...]:
    return tuple(
        each.decode("utf-8", "replace") if isinstance(each, bytes) else str(each) for each in values.ravel()
    )


def _digest_of_rows(stored: h5py.Dataset, class_names: tuple[str, ...] | None) -> str:
    digest = hashlib.sha256(repr(class_names).encode())
    chunk_bytes = math.prod(stored.chunks or (0,)) * stored.dtype.itemsize
    num_bytes = 0
    for row in evenly(len(stored), DIGEST_ROWS):
        if num_bytes >= DIGEST_BYTES:
            break
        try:
            values = np.ascontiguousarray(stored[row])
        except OSError:  # a damaged row is a broken sample, which a run may have some of
            digest.update(f"{row} cannot be read".encode())
            continue
        digest.update(f"{row} {values.shape}".encode() + values.tobytes())
        num_bytes += max(values.nbytes, chunk_bytes)
    return digest.hexdigest()[:32]


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

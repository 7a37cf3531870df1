"""Open HDF5 files, and read labels and digests from them."""

from __future__ import annotations

import errno
import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.dataset import evenly
from hpcbal.data.datasets.hdf5_sources import check_sources
from hpcbal.errors import DataError

if TYPE_CHECKING:
    import h5py

CACHE_BYTES = 64 * 2**20
"""Chunk cache per process. Samples are read in random order, so a larger cache unpacks fewer chunks."""

DIGEST_ROWS, DIGEST_BYTES = 64, 64 * 2**20
"""Rows and bytes at most that are read when a file is opened, to know it again; at least one row."""

_LOCK_ERRORS = (errno.EAGAIN, errno.ENOLCK, errno.ENOSYS, 524)  # 524: from Lustre and NFS without locks
_LOCK_WORDS = ("unable to lock file", "file locking")


def opened(path: Path, cache_bytes: int = CACHE_BYTES) -> h5py.File:
    """Open a file without locks.

    Raises:
        DataError: if it is no file of HDF5, or is locked.
    """
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


def member_of(file: h5py.File, path: Path, name: str) -> h5py.Dataset:
    """The dataset of that name.

    Raises:
        DataError: if there is none, or a part of it is missing.
    """
    import h5py

    member = file.get(name)
    if isinstance(member, h5py.Dataset):
        check_sources(member)
    else:
        link = file.get(name, getlink=True) if member is None else None
        if isinstance(link, h5py.ExternalLink | h5py.SoftLink):
            place = f"{link.filename}:{link.path}" if isinstance(link, h5py.ExternalLink) else link.path
            raise DataError(
                f"hdf5: {path}: {name!r} is a link to {place}, where no dataset can be read; restore it, or "
                "copy the values into this file"
            )
        found: list[str] = []
        file.visititems(lambda key, item: found.append(key) if isinstance(item, h5py.Dataset) else None)
        raise DataError(f"hdf5: {path}: no dataset {name!r}, there are: {', '.join(found) or 'none'}")
    return member


def only_member(path: Path, usual: str) -> str:
    """Return the name of the dataset that a file holds: the usual one, or the only one.

    Raises:
        DataError: if there are none or several others, or it is no file of HDF5.
    """
    import h5py

    found: list[str] = []
    with opened(path) as file:
        file.visititems(lambda key, item: found.append(key) if isinstance(item, h5py.Dataset) else None)
    if usual not in found and len(found) != 1:
        raise DataError(
            f"--data: {path} holds the datasets {', '.join(found) or 'none'}; name the one with the samples: "
            '--data-args \'{"images": "NAME"}\''
        )
    return usual if usual in found else found[0]


@dataclass(frozen=True)
class _Labels:
    """The class of each row, the number of classes, their names if they have any, and how they were read."""

    numbers: NDArray[np.int64]
    num_classes: int
    names: tuple[str, ...] | None
    remarks: tuple[str, ...]
    are_texts: bool = False


def no_labels(samples: h5py.Dataset) -> _Labels:
    """Return class 0 for each row of a dataset."""
    return _Labels(np.zeros(len(samples) if samples.shape else 0, np.int64), 1, None, ())


def read_labels(stored: h5py.Dataset, where: str) -> _Labels:
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


def content_of_rows(stored: h5py.Dataset) -> dict[int, bytes]:
    """Digests of the values of some rows."""
    found: dict[int, bytes] = {}
    chunk_bytes = math.prod(stored.chunks or (0,)) * stored.dtype.itemsize
    num_bytes = 0
    for row in evenly(len(stored), DIGEST_ROWS):
        if num_bytes >= DIGEST_BYTES:
            break
        try:
            values = np.ascontiguousarray(stored[row])
        except OSError:  # a damaged row is a broken sample, which a run may have some of
            found[row] = b"cannot be read"
            continue
        found[row] = hashlib.sha256(f"{values.shape}".encode() + values.tobytes()).digest()
        num_bytes += max(values.nbytes, chunk_bytes)
    return found

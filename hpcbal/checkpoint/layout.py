"""HDF5 decides where the bytes of a file go; the arrays are written without it.

h5py holds Python's global lock and its own lock while it writes, and HDF5 cannot close a file once the disk
is full. So HDF5 only lays out the file in memory: every dataset is contiguous, its space is allocated at once
and never filled, and HDF5 itself writes only some kilobytes (names, shapes, types). The bytes of the arrays
go straight from memory to disk (see `writer`), without a copy and without a lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5p, h5s, h5t
from numpy.typing import NDArray

from hpcbal.errors import CheckpointError

_PAGE_BYTES = 4096
_MAX_ITEM_BYTES = {"b": 1, "i": 8, "u": 8, "f": 8, "c": 16}


class SparseFile:
    """A file in memory that keeps only the pages that were written; all other bytes read as zero."""

    def __init__(self) -> None:
        self.size = 0
        self._pages: dict[int, bytearray] = {}
        self._position = 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self.size)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        source = memoryview(data).cast("B")
        done = 0
        while done < len(source):
            page, start = divmod(self._position + done, _PAGE_BYTES)
            length = min(_PAGE_BYTES - start, len(source) - done)
            target = self._pages.setdefault(page, bytearray(_PAGE_BYTES))
            target[start : start + length] = source[done : done + length]
            done += length
        self._position += done
        self.size = max(self.size, self._position)
        return done

    def read(self, size: int) -> bytes:
        data = self.read_at(self._position, size)
        self._position += size
        return data

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        target[:] = self.read(len(target))
        return len(target)

    def truncate(self, size: int | None = None) -> int:
        self.size = self._position if size is None else size
        return self.size

    def flush(self) -> None:
        """Do nothing: there is no buffer."""

    def read_at(self, offset: int, length: int) -> bytes:
        """Return the bytes from `offset` to `offset + length`."""
        parts = []
        end = offset + length
        while offset < end:
            page, start = divmod(offset, _PAGE_BYTES)
            piece = min(_PAGE_BYTES - start, end - offset)
            content = self._pages.get(page)
            parts.append(bytes(piece) if content is None else bytes(content[start : start + piece]))
            offset += piece
        return b"".join(parts)


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """What HDF5 needs to know about an array to allocate its space."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@lru_cache(maxsize=4)
def lay_out(specs: tuple[ArraySpec, ...]) -> tuple[SparseFile, tuple[int | None, ...]]:
    """Lay out an HDF5 file that holds these arrays under their names.

    A job's checkpoints all look alike, so the last layouts are cached: making one takes some 50 us per array.

    Returns:
        HDF5's own bytes (everything except the arrays'; `size` is the size of the whole file; read-only), and
        the offset of each array's bytes, None for an array without bytes.
    """
    offsets = []
    file = SparseFile()
    # Formats of HDF5 1.10 (2016): small, and readable with every h5dump still in use.
    with h5py.File(file, "w", libver=("v110", "v110")) as root:
        creation = h5p.create(h5p.DATASET_CREATE)
        creation.set_layout(h5d.CONTIGUOUS)
        creation.set_alloc_time(h5d.ALLOC_TIME_EARLY)
        creation.set_fill_time(h5d.FILL_TIME_NEVER)
        creation.set_obj_track_times(False)  # equal states make equal files
        link = h5p.create(h5p.LINK_CREATE)
        link.set_create_intermediate_group(True)
        link.set_char_encoding(h5t.CSET_UTF8)
        for spec in specs:
            type_ = h5t.py_create(spec.dtype, logical=True)
            space = h5s.create_simple(spec.shape) if spec.shape else h5s.create(h5s.SCALAR)
            dataset = h5d.create(root.id, spec.name.encode(), type_, space, creation, link)
            offsets.append(None if 0 in spec.shape else dataset.get_offset())
    return file, tuple(offsets)


def check_arrays(arrays: Mapping[str, NDArray[Any]]) -> None:
    """Reject arrays that a checkpoint would not restore exactly.

    Raises:
        CheckpointError: if an array cannot be stored; the message names it.
    """
    for name, array in arrays.items():
        parts = name.split("/")
        if not name.isprintable() or any(part in ("", ".") for part in parts):
            raise CheckpointError(
                f"array name {name!r} is not allowed in a checkpoint: the parts between '/' must be "
                "printable, not empty and not '.'"
            )
        if any("/".join(parts[:depth]) in arrays for depth in range(1, len(parts))):
            raise CheckpointError(f"array name {name!r} is below the name of another array: rename one")
        if array.dtype.fields or array.dtype.itemsize > _MAX_ITEM_BYTES.get(array.dtype.kind, -1):
            raise CheckpointError(
                f"array {name!r} has type {array.dtype}: a checkpoint can hold booleans, integers, float16 "
                "to float64 and complex numbers; cast the array (bfloat16 to float32 is exact)"
            )


def read_array(dataset: h5py.Dataset) -> NDArray[Any]:
    """Read all of `dataset` into new memory."""
    return np.asarray(dataset[()], dtype=dataset.dtype)

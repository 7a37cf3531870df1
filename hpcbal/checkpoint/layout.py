"""Let HDF5 say where the bytes of a file go, and leave the writing of the arrays to others.

h5py holds Python's global lock and its own while it writes, and when the disk is full HDF5 cannot close its
file any more. So HDF5 only lays the file out, into memory: every dataset is contiguous, its place allocated
at once and never filled, and what HDF5 itself writes (names, shapes, types) is some kilobytes. The arrays'
bytes go from where they are straight to the disk (see `writer`), without a copy and without any lock.
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
    """A file in memory that keeps only the pages that were written; the rest reads as zeros."""

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
        """Nothing is kept back."""

    def read_at(self, offset: int, length: int) -> bytes:
        """Bytes `offset` .. `offset + length`."""
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
    """What HDF5 must know of an array to find a place for it."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@lru_cache(maxsize=4)
def lay_out(specs: tuple[ArraySpec, ...]) -> tuple[SparseFile, tuple[int | None, ...]]:
    """Lay out an HDF5 file that holds these arrays under their names.

    A job's checkpoints all look alike, so the last layouts are kept: making one takes some 50 us per array.

    Returns:
        HDF5's own bytes (all but the arrays'; its `size` is that of the whole file; only to be read), and for
        each array the offset where its bytes belong, None if it has none.
    """
    offsets = []
    file = SparseFile()
    # Formats of HDF5 1.10 (2016): small, and readable with every h5dump that is still around.
    with h5py.File(file, "w", libver=("v110", "v110")) as root:
        creation = h5p.create(h5p.DATASET_CREATE)
        creation.set_layout(h5d.CONTIGUOUS)
        creation.set_alloc_time(h5d.ALLOC_TIME_EARLY)
        creation.set_fill_time(h5d.FILL_TIME_NEVER)
        creation.set_obj_track_times(False)  # equal states give equal files
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
    """Refuse what would not come back as it went in.

    Raises:
        CheckpointError: naming the array.
    """
    for name, array in arrays.items():
        parts = name.split("/")
        if not name.isprintable() or any(part in ("", ".") for part in parts):
            raise CheckpointError(
                f"array name {name!r} cannot stand in a checkpoint: parts between '/' must be printable "
                "and neither empty nor '.'"
            )
        if any("/".join(parts[:depth]) in arrays for depth in range(1, len(parts))):
            raise CheckpointError(f"array name {name!r} lies below the name of another array: rename one")
        if array.dtype.fields or array.dtype.itemsize > _MAX_ITEM_BYTES.get(array.dtype.kind, -1):
            raise CheckpointError(
                f"array {name!r} has type {array.dtype}: a checkpoint holds booleans, integers, float16 to "
                "float64 and complex numbers; cast it (bfloat16 to float32 is exact)"
            )


def read_array(dataset: h5py.Dataset) -> NDArray[Any]:
    """All of `dataset`, in memory of its own."""
    return np.asarray(dataset[()], dtype=dataset.dtype)

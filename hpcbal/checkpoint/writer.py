"""Write a checkpoint such that a whole one exists at every moment, under one of its two names.

h5py holds Python's global lock and its own lock while it writes, and HDF5 cannot close a file once the disk
is full. So HDF5 only lays out the file in memory: every dataset is contiguous, its space is allocated at once
and never filled, and HDF5 itself writes only some kilobytes (names, shapes, types). The bytes of the arrays
go straight from memory to disk (see `writer`), without a copy and without a lock.

`checkpoint.h5.tmp` is written and flushed to disk, `checkpoint.h5` is renamed to `checkpoint.previous.h5`,
then the new file is renamed to `checkpoint.h5`. A kill at any point leaves the old or the new checkpoint.
"""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np
from h5py import h5d, h5p, h5s, h5t
from numpy.typing import NDArray

from hpcbal.checkpoint.state import (
    SEAL_BYTES,
    OtherVersionError,
    TrainingState,
    make_seal,
    progress_to_json,
    start_checksum,
    verify,
)
from hpcbal.errors import CheckpointError
from hpcbal.telemetry.files.atomic_file import (
    create_new,
    make_inside,
    output_error,
    remove_quietly,
    sync_directory,
)

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
    """Name, type and shape of an array, from which HDF5 allocates its space."""

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


CURRENT = "checkpoint.h5"
PREVIOUS = "checkpoint.previous.h5"
ASIDE = "checkpoint.h5.tmp"
DAMAGED = "checkpoint.damaged{}.h5"
"""Names under which damaged checkpoints are kept: the first without a number, then -2, -3, ..."""
ARRAYS = "arrays"
PROGRESS = "progress"

_PIECE_BYTES = 4 << 20  # each piece is checksummed while it is still in the cache


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """Identifies a file, to check that it is still the same one that was written."""

    inode: int
    num_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, path: Path) -> FileIdentity:
        stat = os.stat(path)
        return cls(stat.st_ino, stat.st_size, stat.st_mtime_ns)


def write_checkpoint(
    directory: str | os.PathLike[str],
    state: TrainingState,
    *,
    known_whole: FileIdentity | None = None,
    num_parents: int = 1,
) -> FileIdentity:
    """Write `state` as the checkpoint of `directory`; keep the one before it as the previous checkpoint.

    Args:
        directory: created if missing; only one writer at a time.
        state: its arrays must not change until this returns.
        known_whole: what the last call returned. A `checkpoint.h5` that is not known to be whole is read
            first: if it is damaged, it is kept under another name, and the whole previous checkpoint stays.
        num_parents: how many directories above may be missing too, and are created.

    Returns:
        The identity of the written file, for `known_whole` of the next call.

    Raises:
        OutputError: if the directory is not writable or full; the old checkpoints stay, nothing else is left.
        CheckpointError: if an array's name or type is not allowed in a checkpoint.
    """
    folder = Path(directory)
    aside, current = folder / ASIDE, folder / CURRENT
    try:
        make_inside(folder, num_parents)
        with create_new(aside) as file:
            write_sealed(file, state)
            file.flush()
            os.fsync(file.fileno())
        if _is_whole(current, known_whole):
            os.replace(current, folder / PREVIOUS)
        elif current.exists():
            set_aside(current)
        identity = FileIdentity.of(aside)
        os.replace(aside, current)
        sync_directory(folder)
    except OSError as error:
        remove_quietly(aside)
        raise output_error(current, error, f"write the checkpoint of {state.name!r}") from error
    except BaseException:
        remove_quietly(aside)
        raise
    return identity


def set_aside(path: Path, pattern: str = DAMAGED) -> Path:
    """Give a file a name that no save overwrites, and return it.

    Args:
        pattern: of the new name, with a place for its number.

    Raises:
        OSError: if it cannot be renamed.
    """
    numbers = itertools.chain([""], map("-{}".format, itertools.count(2)))
    names = (path.with_name(pattern.format(number)) for number in numbers)
    kept = next(name for name in names if not name.exists())
    os.replace(path, kept)
    return kept


def _is_whole(path: Path, known_whole: FileIdentity | None) -> bool:
    """Whether `path` is a whole checkpoint, which may replace the previous one."""
    try:
        if known_whole is not None and FileIdentity.of(path) == known_whole:
            return True
        verify(path)
    except OtherVersionError:
        return True
    except (CheckpointError, OSError):
        return False
    return True


def write_sealed(file: BinaryIO, state: TrainingState) -> None:
    """Write the seal, then HDF5's own bytes and the arrays' bytes in file order."""
    check_arrays(state.arrays)
    contents: dict[str, NDArray[Any]] = {PROGRESS: _progress_array(state)}
    for name, array in state.arrays.items():
        contents[f"{ARRAYS}/{name}"] = np.asarray(array, order="C")
    hdf5, offsets = lay_out(tuple(ArraySpec(name, a.dtype, a.shape) for name, a in contents.items()))
    file.write(bytes(SEAL_BYTES))  # the seal comes last, so a half-written file is never taken for whole
    crc32, position = start_checksum(), 0
    places = [(at, array) for at, array in zip(offsets, contents.values(), strict=True) if at is not None]
    for offset, array in sorted(places, key=lambda place: place[0]):
        crc32 = _write_pieces(file, _own_bytes(hdf5, position, offset), crc32)
        crc32 = _write_pieces(file, array.reshape(-1).view(np.uint8).data, crc32)
        position = offset + array.nbytes
    crc32 = _write_pieces(file, _own_bytes(hdf5, position, hdf5.size), crc32)
    file.seek(0)
    file.write(make_seal(hdf5.size, crc32))


def _progress_array(state: TrainingState) -> NDArray[Any]:
    """The progress as one text, padded to a power of two, so that the layout seldom changes."""
    text = progress_to_json(state).encode()
    return np.array(text.ljust(max(4096, 1 << (len(text) - 1).bit_length())))


def _own_bytes(hdf5: SparseFile, start: int, stop: int) -> memoryview:
    return memoryview(hdf5.read_at(start, stop - start))


def _write_pieces(file: BinaryIO, data: memoryview, crc32: int) -> int:
    """Write `data` and return the continued checksum; both let other threads run."""
    for start in range(0, len(data), _PIECE_BYTES):
        piece = data[start : start + _PIECE_BYTES]
        crc32 = zlib.crc32(piece, crc32)
        file.write(piece)
    return crc32

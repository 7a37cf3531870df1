"""Write a checkpoint such that a whole one exists at every moment, under one of its two names.

`checkpoint.h5.tmp` is written and flushed to disk, `checkpoint.h5` is renamed to `checkpoint.previous.h5`,
then the new file is renamed to `checkpoint.h5`. A kill at any point leaves the old or the new checkpoint.
"""

from __future__ import annotations

import itertools
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hpcbal.checkpoint.layout import ArraySpec, SparseFile, check_arrays, lay_out
from hpcbal.checkpoint.seal import SEAL_BYTES, OtherVersionError, make_seal, start_checksum, verify
from hpcbal.checkpoint.state import TrainingState, progress_to_json
from hpcbal.errors import CheckpointError
from hpcbal.telemetry.files.atomic_file import output_error, remove_quietly, sync_directory
from hpcbal.telemetry.files.own_files import create_new

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
) -> FileIdentity:
    """Write `state` as the checkpoint of `directory`; keep the one before it as the previous checkpoint.

    Args:
        directory: created if missing; only one writer at a time.
        state: its arrays must not change until this returns.
        known_whole: what the last call returned. A `checkpoint.h5` that is not known to be whole is read
            first: if it is damaged, it is kept under another name, and the whole previous checkpoint stays.

    Returns:
        The identity of the written file, for `known_whole` of the next call.

    Raises:
        OutputError: if the directory is not writable or full; the old checkpoints stay, nothing else is left.
        CheckpointError: if an array's name or type is not allowed in a checkpoint.
    """
    folder = Path(directory)
    aside, current = folder / ASIDE, folder / CURRENT
    try:
        folder.mkdir(parents=True, exist_ok=True)
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

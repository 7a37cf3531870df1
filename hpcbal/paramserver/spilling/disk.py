"""Node-local disk: files without a name, which are gone when their process is, however it ends."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import InputError
from hpcbal.paramserver.coscheduling.subtasks import PacedResource

PREFIX = "hpcbal-spill-"
ALIGNMENT = 4096
"""Regions of a file begin at multiples of it, in bytes."""


class SpillError(InputError):
    """Samples cannot be written to node-local disk, or read from there."""


class LocalDisk:
    """Where one machine keeps what does not fit into its memory.

    Args:
        directory: on node-local disk; it must exist.
        bytes_per_s: in emulation, of reading and writing together; None: as fast as it is.

    Attributes:
        emulated: shared evenly by those who read; not used if the disk is as fast as it is.
    """

    def __init__(self, directory: Path, bytes_per_s: float | None = None) -> None:
        self.directory, self.bytes_per_s = directory, bytes_per_s
        self.emulated = PacedResource()

    def check(self) -> None:
        """Check that files can be made.

        Raises:
            SpillError: they cannot.
        """
        with self.open() as file:
            file.reserve(ALIGNMENT)

    def open(self) -> SpillFile:
        """A new, empty file, which goes when it is closed or when the process ends.

        Raises:
            SpillError: none can be made.
        """
        try:
            # On Linux it never has a name. Elsewhere it loses its name at once.
            return SpillFile(self, tempfile.TemporaryFile(dir=self.directory, prefix=PREFIX, buffering=0))
        except OSError as error:
            raise self.error("no file can be made", error) from None

    def error(self, what: str, cause: OSError) -> SpillError:
        """Return the error of a failed operation, for the user."""
        reason = "it is full" if cause.errno in (errno.ENOSPC, errno.EDQUOT) else cause.strerror or str(cause)
        return SpillError(
            f"spill.directory: got {str(self.directory)!r}, but {what}: {reason}; free space there, name "
            "another directory on node-local disk, or allow more memory_per_node"
        )


class SpillFile:
    """The blocks of one job on one machine's disk."""

    def __init__(self, disk: LocalDisk, file: Any) -> None:
        self.disk, self._file = disk, file
        self._end = 0
        self._lock = threading.Lock()
        self._written_bytes = 0  # for which nobody has waited

    def __enter__(self) -> SpillFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the space back."""
        self._file.close()

    def reserve(self, num_bytes: int) -> int:
        """Get a region of the file; returns where it begins.

        Raises:
            SpillError: there is no space for it. Nothing has been written then.
        """
        with self._lock:
            start, size = self._end, max(1, num_bytes)
            try:
                os.posix_fallocate(self._file.fileno(), start, size)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                    raise self.disk.error(f"it has no room for {size:,} more bytes", error) from None
            self._end = -(-(start + size) // ALIGNMENT) * ALIGNMENT
            return start

    def write(self, array: NDArray[Any], at: int) -> None:
        """Write an array's bytes.

        Raises:
            SpillError: they cannot be written.
        """
        left = _bytes_of(np.ascontiguousarray(array))
        while len(left):
            try:
                count = os.pwrite(self._file.fileno(), left, at)
            except OSError as error:
                raise self.disk.error("it cannot be written", error) from None
            left, at = left[count:], at + count

    def read(self, array: NDArray[Any], at: int) -> None:
        """Fill a contiguous array.

        Raises:
            SpillError: the bytes cannot be read.
        """
        left = _bytes_of(array)
        while len(left):
            try:
                count = os.preadv(self._file.fileno(), [left], at)
                if not count:
                    raise OSError(errno.EIO, "a file has become shorter")
            except OSError as error:
                raise self.disk.error("it cannot be read", error) from None
            left, at = left[count:], at + count

    def pace_writing(self, num_bytes: int) -> None:
        """So many bytes have been written; whoever reads next waits for them too."""
        with self._lock:
            self._written_bytes += num_bytes

    @contextmanager
    def pace_reading(self, num_bytes: int) -> Iterator[None]:
        """Take as long for what is read here as an emulated disk, of which all who read have even shares."""
        if self.disk.bytes_per_s is None:
            yield
            return
        with self._lock:
            num_bytes, self._written_bytes = num_bytes + self._written_bytes, 0
        with self.disk.emulated.taking(str(threading.get_ident()), num_bytes / self.disk.bytes_per_s):
            yield


def _bytes_of(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data

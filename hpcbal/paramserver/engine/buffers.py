"""Memory for messages: reused, so that its pages stay mapped, and counted against a limit.

What a worker keeps of the tables counts against the same limit.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import InputError

SMALLEST = 4096
"""Bytes; smaller buffers take as much."""

KEPT_SHARE = 0.5
"""Of the limit: free buffers beyond it go back to the operating system."""


class MemoryLimitError(InputError):
    """An executor needs more than `memory_per_rank`."""


class Buffers:
    """Buffers of one executor.

    Args:
        limit_bytes: of those in use, and of what is kept beside them; None: no limit.

    Attributes:
        used_bytes: of the buffers in use.
        kept_bytes: of rows and updates that a worker keeps in arrays of its own, see `keep`.
        most_bytes: the most of both at a time.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self._limit = limit_bytes
        self._free: dict[int, list[NDArray[np.uint8]]] = defaultdict(list)
        self._free_bytes = 0
        self.used_bytes = 0
        self.kept_bytes = 0
        self.most_bytes = 0

    def set_limit(self, limit_bytes: int) -> None:
        """Change the limit; what is in use stays."""
        self._limit = limit_bytes

    def has_room(self, num_bytes: int) -> bool:
        """Whether a buffer fits below the limit, beside what is kept.

        A buffer fits whenever no other is in use. Otherwise two workers that serve each other could wait for
        each other, each with rows that it drops only when its push has been received.
        """
        if self._limit is None or not self.used_bytes:
            return True
        return self.used_bytes + self.kept_bytes + num_bytes <= self._limit

    def keep(self, num_bytes: int) -> None:
        """Count so many bytes that a worker keeps, until `drop`.

        Raises:
            MemoryLimitError: all that is kept does not fit below the limit. Nothing is counted then.
        """
        kept = self.kept_bytes + num_bytes
        if self._limit is not None and kept > self._limit:
            raise MemoryLimitError(
                f"memory_per_rank: a turn keeps {kept:,} bytes of rows and updates, but blocks and dense "
                f"tables leave {self._limit:,}; lower mini_batch, use more executors, or allow more memory"
            )
        self.kept_bytes += num_bytes
        self._note_most()

    def drop(self, num_bytes: int) -> None:
        """So many bytes that `keep` has counted are no longer kept."""
        self.kept_bytes -= num_bytes

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        """A buffer of at least `num_bytes`, aligned for any type; its contents are arbitrary.

        The limit is the caller's to keep, see `has_room`: who must not wait may exceed it.
        """
        size = _rounded(num_bytes)
        self.used_bytes += size
        self._note_most()
        free = self._free[size]
        if free:
            self._free_bytes -= size
            return free.pop()
        return np.empty(size, np.uint8)

    def give(self, buffer: NDArray[np.uint8]) -> None:
        """Return a buffer that `take` has handed out."""
        self.used_bytes -= buffer.nbytes
        if self._limit is None or self._free_bytes + buffer.nbytes <= KEPT_SHARE * self._limit:
            self._free[buffer.nbytes].append(buffer)
            self._free_bytes += buffer.nbytes

    def _note_most(self) -> None:
        self.most_bytes = max(self.most_bytes, self.used_bytes + self.kept_bytes)


def view(
    buffer: NDArray[np.uint8], start: int, shape: tuple[int, ...], dtype: str | np.dtype[Any]
) -> NDArray[Any]:
    """An array that lies in a buffer from the byte `start` on."""
    return np.ndarray(shape, dtype, buffer.data, start)


def _rounded(num_bytes: int) -> int:
    """The next size with one of four mantissas, so that unequal requests share buffers."""
    if num_bytes <= SMALLEST:
        return SMALLEST
    step = 1 << max(0, (num_bytes - 1).bit_length() - 3)
    return -(-num_bytes // step) * step

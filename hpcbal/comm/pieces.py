"""Carry pieces of data between the ranks of a group while these do something else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Piece = NDArray[np.uint8]


class PieceExchange(ABC):
    """One rank's end. At most one piece at a time is on its way from one rank to another.

    Only `exchange_numbers` and `close` wait for other ranks. Pieces from one rank to another arrive in the
    order in which they were sent.
    """

    @property
    @abstractmethod
    def rank(self) -> int:
        """This rank in the group, 0 to size - 1."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of ranks in the group."""

    @abstractmethod
    def send(self, destination: int, piece: Piece) -> None:
        """Begin to send `piece` to a rank that is free; it must not change until that rank is free again.

        Args:
            piece: bytes, shape (num_bytes,).
        """

    @abstractmethod
    def is_free(self, destination: int) -> bool:
        """Whether `destination` has received the last piece that was sent to it."""

    @abstractmethod
    def receive(self, source: int) -> Piece | None:
        """Return the next piece from `source`, which now belongs to the caller; None if none is complete."""

    @abstractmethod
    def exchange_numbers(self, numbers: NDArray[np.int64], poll: Callable[[], None]) -> NDArray[np.int64]:
        """Give each rank a number, and return what the ranks give to this one; collective.

        Args:
            numbers: for each rank, shape (size,).
            poll: called repeatedly while other ranks are missing; it may send and receive.

        Returns: from each rank, shape (size,).
        """

    @abstractmethod
    def close(self) -> None:
        """Free what the exchange uses; collective. No piece may be on its way."""

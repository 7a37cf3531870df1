"""Communicate within a trainer group, outside of gradients: small collectives, and pieces of data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Reduction = Literal["sum", "min", "max"]


class GroupComm(ABC):
    """Small collectives over the ranks of one group.

    Every rank of the group calls the same methods in the same order, with arrays of the same shape and type.
    Waiting burns no core. The first rank of a group is its master.
    """

    @property
    @abstractmethod
    def rank(self) -> int:
        """This rank in the group, 0 to size - 1; 0 is the master."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of ranks in the group."""

    @abstractmethod
    def all_gather(self, mine: NDArray[Any], poll: Callable[[], None] | None = None) -> NDArray[Any]:
        """Gather the arrays of all ranks, shape (size, *mine.shape), in order of rank.

        Args:
            mine: this rank's array.
            poll: called repeatedly while other ranks are missing.
        """

    @abstractmethod
    def all_reduce(self, mine: NDArray[Any], reduction: Reduction) -> NDArray[Any]:
        """Return the element-wise sum, minimum or maximum over all ranks, in the shape of `mine`."""

    @abstractmethod
    def broadcast(self, array: NDArray[Any]) -> None:
        """Fill `array` (contiguous) on all other ranks with the master's values."""

    @abstractmethod
    def open_pieces(self) -> PieceExchange:
        """Make an exchange of pieces between the ranks; collective. The caller closes it."""


class AloneComm(GroupComm):
    """A group of one rank; no method waits, and there is nobody to exchange pieces with."""

    rank = 0
    size = 1

    def all_gather(self, mine: NDArray[Any], poll: Callable[[], None] | None = None) -> NDArray[Any]:
        return np.stack([mine])

    def all_reduce(self, mine: NDArray[Any], reduction: Reduction) -> NDArray[Any]:
        return np.array(mine)

    def broadcast(self, array: NDArray[Any]) -> None:
        """Nobody is there to receive it."""

    def open_pieces(self) -> PieceExchange:
        raise RuntimeError("a rank that trains alone holds no part of the data, so it exchanges no pieces")


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

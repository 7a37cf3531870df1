"""How the ranks of a trainer group agree outside of training steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal

from numpy.typing import NDArray

from hpcbal.comm.pieces import PieceExchange

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

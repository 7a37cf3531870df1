"""Pieces of data between threads of one process."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hpcbal.comm.group_comm import GroupComm
from hpcbal.comm.pieces import Piece, PieceExchange


class LoopbackPieces(PieceExchange):
    """One rank's end; a piece is copied on its way, as it would be between processes.

    Args:
        comm: the group.
        on_their_way: pieces by (sender, receiver), empty at first; shared by the ranks.
    """

    def __init__(self, comm: GroupComm, on_their_way: dict[tuple[int, int], Piece]) -> None:
        self._comm = comm
        self._on_their_way = on_their_way

    @property
    def rank(self) -> int:
        return self._comm.rank

    @property
    def size(self) -> int:
        return self._comm.size

    def send(self, destination: int, piece: Piece) -> None:
        self._on_their_way[self.rank, destination] = piece.copy()

    def is_free(self, destination: int) -> bool:
        return (self.rank, destination) not in self._on_their_way

    def receive(self, source: int) -> Piece | None:
        return self._on_their_way.pop((source, self.rank), None)

    def exchange_numbers(self, numbers: NDArray[np.int64], poll: Callable[[], None]) -> NDArray[np.int64]:
        given: NDArray[np.int64] = self._comm.all_gather(numbers, poll)[:, self.rank]
        return given

    def close(self) -> None:
        """Free nothing.

        Raises:
            RuntimeError: if a piece is on its way from or to this rank, which is a bug of ours.
        """
        left = [way for way in tuple(self._on_their_way) if self.rank in way]
        if left:
            raise RuntimeError(f"rank {self.rank}: pieces (sender, receiver) {left} were not received")

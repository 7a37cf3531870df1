"""Pieces of data between the ranks of a group over MPI."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpcbal.comm.pieces import Piece, PieceExchange
from hpcbal.comm.requests import wait_for

TAG = 1
"""Tag of the messages; the communicator carries nothing else."""


class MpiPieces(PieceExchange):
    """Synchronous sends, so at most one piece per sender waits at a receiver.

    Args:
        comm: communicator of the ranks, used for nothing else; freed by `close`.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        # With each request, what MPI reads or fills until it is complete.
        self._sent: dict[int, tuple[MPI.Request, Piece]] = {}
        self._coming: dict[int, tuple[MPI.Request, Piece]] = {}

    @property
    def rank(self) -> int:
        return self._comm.rank

    @property
    def size(self) -> int:
        return self._comm.size

    def send(self, destination: int, piece: Piece) -> None:
        self._sent[destination] = self._comm.Issend(piece, dest=destination, tag=TAG), piece

    def is_free(self, destination: int) -> bool:
        if destination in self._sent and self._sent[destination][0].Test():
            del self._sent[destination]
        return destination not in self._sent

    def receive(self, source: int) -> Piece | None:
        if source not in self._coming:
            status = MPI.Status()
            if not self._comm.Iprobe(source=source, tag=TAG, status=status):
                return None
            piece = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            self._coming[source] = self._comm.Irecv(piece, source=source, tag=TAG), piece
        request, piece = self._coming[source]
        if not request.Test():
            return None
        del self._coming[source]
        return piece

    def exchange_numbers(self, numbers: NDArray[np.int64], poll: Callable[[], None]) -> NDArray[np.int64]:
        given = np.empty(self.size, np.int64)
        wait_for(self._comm.Ialltoall(np.ascontiguousarray(numbers, np.int64), given), poll)
        return given

    def close(self) -> None:
        self._comm.Free()

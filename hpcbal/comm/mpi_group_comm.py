"""A trainer group's small collectives over MPI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpcbal.comm.group_comm import GroupComm, Reduction
from hpcbal.comm.mpi import MpiPieces, wait_for

_OPERATIONS = {"sum": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX}


class MpiGroupComm(GroupComm):
    """Non-blocking MPI collectives, completed with a backoff.

    Args:
        comm: communicator of the group's ranks, the master first; whoever made it frees it.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.mpi = comm

    @property
    def rank(self) -> int:
        return self.mpi.rank

    @property
    def size(self) -> int:
        return self.mpi.size

    def all_gather(self, mine: NDArray[Any], poll: Callable[[], None] | None = None) -> NDArray[Any]:
        everyone = np.empty((self.size, *mine.shape), mine.dtype)
        wait_for(self.mpi.Iallgather(np.ascontiguousarray(mine), everyone), poll)
        return everyone

    def all_reduce(self, mine: NDArray[Any], reduction: Reduction) -> NDArray[Any]:
        result = np.array(mine, order="C")
        wait_for(self.mpi.Iallreduce(MPI.IN_PLACE, result, op=_OPERATIONS[reduction]))
        return result

    def broadcast(self, array: NDArray[Any]) -> None:
        wait_for(self.mpi.Ibcast(array, root=0))

    def open_pieces(self) -> MpiPieces:
        return MpiPieces(self.mpi.Dup())

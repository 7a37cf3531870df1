"""Ranks that evaluate exchange what they have found, over MPI."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpcbal.comm.collectives import patient_allgather
from hpcbal.comm.group_comm import Reduction
from hpcbal.comm.mpi import MpiGroupComm
from hpcbal.runtime.evaluating.workers import Workers
from hpcbal.runtime.health.liveness import Liveness


class MpiWorkers(Workers):
    """Over MPI; waiting burns no core.

    Args:
        comm: communicator of these ranks.
        liveness: notes that this rank waits.
    """

    def __init__(self, comm: MPI.Intracomm, liveness: Liveness) -> None:
        self._comm = comm
        self._liveness = liveness
        self._group = MpiGroupComm(comm)
        self.rank, self.size = comm.rank, comm.size

    def share(self, value: Any) -> list[Any]:
        with self._liveness.waiting():
            return patient_allgather(self._comm, value)

    def reduce(self, array: NDArray[Any], reduction: Reduction) -> NDArray[Any]:
        with self._liveness.waiting():
            return self._group.all_reduce(np.ascontiguousarray(array), reduction)

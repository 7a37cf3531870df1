"""Ranks that evaluate: signs of life, and the exchange of what they have found."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpcbal.comm.collectives import patient_allgather
from hpcbal.comm.group_comm import Reduction
from hpcbal.comm.mpi import MpiGroupComm
from hpcbal.runtime.handoff.rank_process import Activity

WAITING = "waiting for other ranks"
"""The activity of a rank that waits; it may last as long as the work of the others."""

T = TypeVar("T")


class Trace(Protocol):
    """Writes the stacks of this process unless it is renewed in time; see `HangTrace`."""

    def renew(self) -> None:
        """Restart the countdown."""

    def pause(self) -> None:
        """Stop the countdown until it is renewed."""


class Life:
    """Notes what this rank does, for the ranks of its node that watch it.

    Args:
        activity: the rank's text in memory that they share.
        trace: also renewed by each note; None: without one.
    """

    def __init__(self, activity: Activity, trace: Trace | None = None) -> None:
        self._activity = activity
        self._trace = trace

    def note(self, doing: str) -> None:
        """What this rank does from now on; a rank that makes progress notes something else each time."""
        self._activity.note(doing)
        if self._trace is not None:
            self._trace.renew()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """While the block runs, this rank waits for others."""
        before = str(self._activity)
        self._activity.note(WAITING)
        if self._trace is not None:
            self._trace.pause()
        yield
        self.note(before)

    def doing(self, what: str, work: Callable[[], T]) -> Callable[[], T]:
        """The same work as a step that others may wait for: noted before, and over afterwards."""

        def noted() -> T:
            self.note(what)
            try:
                return work()
            finally:
                self._activity.note(WAITING)
                if self._trace is not None:
                    self._trace.pause()

        return noted


class Workers(Protocol):
    """Collectives over the ranks that compute; every rank calls the same ones in the same order.

    Attributes:
        rank: of this rank; the first one combines and reports.
        size: number of ranks.
    """

    rank: int
    size: int

    def share(self, value: Any) -> list[Any]:
        """One small picklable value of each rank, on all ranks, in order."""

    def reduce(self, array: NDArray[Any], reduction: Reduction) -> NDArray[Any]:
        """The element-wise sum or maximum over all ranks."""


class MpiWorkers(Workers):
    """Over MPI; waiting burns no core.

    Args:
        comm: communicator of these ranks.
        life: where this rank notes that it waits.
    """

    def __init__(self, comm: MPI.Intracomm, life: Life) -> None:
        self._comm = comm
        self._life = life
        self._group = MpiGroupComm(comm)
        self.rank, self.size = comm.rank, comm.size

    def share(self, value: Any) -> list[Any]:
        with self._life.waiting():
            return patient_allgather(self._comm, value)

    def reduce(self, array: NDArray[Any], reduction: Reduction) -> NDArray[Any]:
        with self._life.waiting():
            return self._group.all_reduce(np.ascontiguousarray(array), reduction)

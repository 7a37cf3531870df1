"""Time the groups of a profiling wave together, so that each is measured on a machine at work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from mpi4py import MPI

from hpcbal.comm.backoff import Backoff

WARM, TIMED = range(2)


class Wave(Protocol):
    """Where the ranks of a profiling wave meet; nobody is held there, so all can go on working meanwhile."""

    def all_warm(self) -> bool:
        """Say that this rank's network has done its first step; whether those of all ranks have."""

    def all_timed(self) -> bool:
        """Say that this rank's steps have been timed; whether those of all ranks have."""

    def leave(self, poll: Callable[[], None]) -> None:
        """Wait until all ranks have met, also after a failure; the last call.

        Args:
            poll: called again and again while waiting.
        """


class MpiWave:
    """Meetings are non-blocking barriers.

    Trainers of a node share its memory bandwidth, its links and, where they have no GPUs, its cores. A group
    that is timed while its neighbours still build their networks, or have left already, seems faster than it
    will be in a round.

    Args:
        comm: of the ranks of all groups of the wave; freed by `leave`.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._meetings: list[MPI.Request] = []

    @classmethod
    def of(cls, trainers: MPI.Intracomm, ranks: Sequence[int]) -> MpiWave:
        """The wave of some trainers; collective over them."""
        everyone = trainers.Get_group()
        mine = everyone.Incl(ranks)
        wave = cls(trainers.Create_group(mine))
        mine.Free()
        everyone.Free()
        return wave

    def all_warm(self) -> bool:
        """As `Wave.all_warm`."""
        return self._at(WARM)

    def all_timed(self) -> bool:
        """As `Wave.all_timed`."""
        return self._at(TIMED)

    def leave(self, poll: Callable[[], None]) -> None:
        """As `Wave.leave`."""
        backoff = Backoff()
        while not self.all_timed():
            poll()
            backoff.wait()
        self._comm.Free()

    def _at(self, meeting: int) -> bool:
        while len(self._meetings) <= meeting:
            self._meetings.append(self._comm.Ibarrier())
        return all(request.Test() for request in self._meetings[: meeting + 1])

"""Synchronise the ranks of a profiling wave with MPI's non-blocking barriers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mpi4py import MPI

from hpcbal.comm.backoff import Backoff
from hpcbal.runtime.roles.group_profile import Wave

WARM, TIMED = range(2)


class MpiWave(Wave):
    """A wave over MPI; each meeting is a non-blocking barrier.

    Trainers of a node share its memory bandwidth, its links and, without GPUs, its cores. A group that is
    timed while its neighbours still build their networks, or after they have left, seems faster than it will
    be in a round.

    Args:
        comm: communicator of the ranks of all groups of the wave; freed by `leave`.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._meetings: list[MPI.Request] = []

    @classmethod
    def of(cls, trainers: MPI.Intracomm, ranks: Sequence[int]) -> MpiWave:
        """Make the wave of these trainers; collective over them."""
        everyone = trainers.Get_group()
        mine = everyone.Incl(ranks)
        wave = cls(trainers.Create_group(mine))
        mine.Free()
        everyone.Free()
        return wave

    def all_warm(self) -> bool:
        return self._at(WARM)

    def all_timed(self) -> bool:
        return self._at(TIMED)

    def leave(self, poll: Callable[[], None]) -> None:
        backoff = Backoff()
        while not self.all_timed():
            poll()
            backoff.wait()
        self._comm.Free()

    def _at(self, meeting: int) -> bool:
        while len(self._meetings) <= meeting:
            self._meetings.append(self._comm.Ibarrier())
        return all(request.Test() for request in self._meetings[: meeting + 1])

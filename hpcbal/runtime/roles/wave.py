"""Time the groups of a profiling wave together, so that each is measured on a machine at work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hpcbal.comm.backoff import Backoff


class Wave(Protocol):
    """Where the ranks of a profiling wave meet; no call waits, so all ranks keep working meanwhile."""

    def all_warm(self) -> bool:
        """Report that this rank has done its first step; returns whether all ranks have."""

    def all_timed(self) -> bool:
        """Report that this rank's steps have been timed; returns whether those of all ranks have."""

    def leave(self, poll: Callable[[], None]) -> None:
        """Wait until all ranks have met; the last call, after a failure too.

        Args:
            poll: called again and again while waiting.
        """


class LoopbackWave(Wave):
    """A wave of threads of one process.

    Args:
        rank: in the wave; any number that no other has.
        num_ranks: of the wave.
        arrived: the ranks that are warm, and those that are timed; shared by the wave's ranks.
    """

    def __init__(self, rank: int, num_ranks: int, arrived: tuple[set[int], set[int]]) -> None:
        self._rank = rank
        self._num_ranks = num_ranks
        self._warm, self._timed = arrived

    def all_warm(self) -> bool:
        self._warm.add(self._rank)
        return len(self._warm) == self._num_ranks

    def all_timed(self) -> bool:
        self._timed.add(self._rank)
        return self.all_warm() and len(self._timed) == self._num_ranks

    def leave(self, poll: Callable[[], None]) -> None:
        backoff = Backoff()
        while not self.all_timed():
            poll()
            backoff.wait()

"""Synchronise the groups of a profiling wave, so that each is timed while the others work too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hpcbal.comm.backoff import Backoff


class Wave(Protocol):
    """Synchronises the ranks of a profiling wave; only `leave` waits, so all ranks can keep working."""

    def all_warm(self) -> bool:
        """Report that this rank has done its first step; returns whether all ranks have."""

    def all_timed(self) -> bool:
        """Report that this rank's steps have been timed; returns whether those of all ranks have."""

    def leave(self, poll: Callable[[], None]) -> None:
        """Wait until all ranks have been timed; must be the last call, also after a failure.

        Args:
            poll: called repeatedly while waiting.
        """


class LoopbackWave(Wave):
    """A wave of threads in one process.

    Args:
        rank: rank in the wave; any unique number.
        num_ranks: number of ranks in the wave.
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

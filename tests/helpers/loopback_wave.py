"""A profiling wave whose ranks are threads of one process."""

from __future__ import annotations

from collections.abc import Callable

from hpcbal.comm.backoff import Backoff
from hpcbal.runtime.roles.group_profile import Wave


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

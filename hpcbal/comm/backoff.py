"""Wait without burning a core: spin briefly, then yield, then sleep longer and longer up to a cap."""

from __future__ import annotations

import os
import time

NUM_SPINS = 20
"""Waits that return at once: some microseconds, long enough for a running peer to answer."""

NUM_YIELDS = 5
"""Waits that then yield the core: with more ranks than cores, the awaited rank may need it."""

FIRST_SLEEP_S = 50e-6
MAX_SLEEP_S = 1e-3
MAX_IDLE_S = 5e-3


class Backoff:
    """The pauses of one wait; call `wait` in the loop, and `reset` when something has happened.

    Example:
        backoff = Backoff()
        while not request.Test():
            backoff.wait()
    """

    __slots__ = ("_calls", "_first_sleep_s", "_max_sleep_s", "_num_spins", "_num_yields", "_sleep_s")

    def __init__(
        self,
        max_sleep_s: float = MAX_SLEEP_S,
        num_spins: int = NUM_SPINS,
        num_yields: int = NUM_YIELDS,
        first_sleep_s: float = FIRST_SLEEP_S,
    ) -> None:
        """Start a wait.

        Args:
            max_sleep_s: longest sleep, > 0; also the longest delay before an event is noticed.
            num_spins: waits that do nothing, >= 0.
            num_yields: waits after those that yield the core, >= 0.
            first_sleep_s: first sleep after those, > 0; each sleep is twice as long as the one before.
        """
        self._max_sleep_s = max_sleep_s
        self._num_spins = num_spins
        self._num_yields = num_yields
        self._first_sleep_s = min(first_sleep_s, max_sleep_s)
        self.reset()

    @classmethod
    def patient(cls) -> Backoff:
        """For the next block, which takes a while: the less this rank runs, the sooner the block comes.

        With more ranks than cores, every spin and every yield takes time from the awaited rank, and the ring
        holds enough blocks to make up for waking late.
        """
        return cls(num_spins=4, num_yields=1, first_sleep_s=100e-6)

    @classmethod
    def idle(cls) -> Backoff:
        """For messages that come once a pass or less often: polls rarely, so that trainers have the cores.

        A poll over MPI takes 0.2 ms, because it progresses all transports. Every millisecond, that would be a
        sixth of a core for each rank that waits. Sleeps grow with the time waited, so a message is noticed
        after at most twice the time that it took, and never later than `MAX_IDLE_S`.
        """
        return cls(max_sleep_s=MAX_IDLE_S, num_spins=4, num_yields=1)

    def reset(self) -> None:
        """Start again with spinning."""
        self._calls = 0
        self._sleep_s = self._first_sleep_s

    def wait(self) -> None:
        """Pause once: not at all, for one turn of the operating system's scheduler, or for a capped sleep."""
        calls = self._calls
        if calls >= self._num_spins + self._num_yields:
            time.sleep(self._sleep_s)
            self._sleep_s = min(2 * self._sleep_s, self._max_sleep_s)
            return
        self._calls = calls + 1
        if calls >= self._num_spins:
            os.sched_yield()

"""Wait without burning a core: spin briefly, then yield, then sleep ever longer up to a cap."""

from __future__ import annotations

import os
import time

NUM_SPINS = 20
"""Empty returns first: some microseconds, the time in which a peer that runs right now answers."""

NUM_YIELDS = 10
"""Then the core is offered to others: with more ranks than cores the awaited rank may need it."""

FIRST_SLEEP_S = 20e-6
MAX_SLEEP_S = 1e-3


class Backoff:
    """The pauses of one wait; call `wait` in the loop and `reset` when something has happened.

    Example:
        backoff = Backoff()
        while not request.Test():
            backoff.wait()
    """

    __slots__ = ("_calls", "_max_sleep_s", "_sleep_s")

    def __init__(self, max_sleep_s: float = MAX_SLEEP_S) -> None:
        """Start a wait; `max_sleep_s` > 0 caps each sleep, and with it the delay of noticing."""
        self._max_sleep_s = max_sleep_s
        self.reset()

    def reset(self) -> None:
        """Start over with spinning."""
        self._calls = 0
        self._sleep_s = min(FIRST_SLEEP_S, self._max_sleep_s)

    def wait(self) -> None:
        """Pause once: not at all, for one turn of the scheduler, or for a sleep of at most the cap."""
        calls = self._calls
        if calls >= NUM_SPINS + NUM_YIELDS:
            time.sleep(self._sleep_s)
            self._sleep_s = min(2 * self._sleep_s, self._max_sleep_s)
            return
        self._calls = calls + 1
        if calls >= NUM_SPINS:
            os.sched_yield()

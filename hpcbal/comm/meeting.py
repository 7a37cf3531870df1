"""A place where threads of one process meet, as ranks meet in a collective."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.01


class MeetingTimeoutError(RuntimeError):
    """A thread never came; the others would wait forever."""


class MeetingAbortedError(RuntimeError):
    """Some thread has failed and ended the meeting for all."""


class Meeting:
    """`num_ranks` threads that exchange one value each per round.

    Each thread counts its own rounds, so a thread may start the next round while others still leave the last
    one.

    Args:
        num_ranks: threads that take part, >= 1.
        timeout_s: how long a thread waits for the others.
    """

    def __init__(self, num_ranks: int, timeout_s: float = TIMEOUT_S) -> None:
        self.num_ranks = num_ranks
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._rounds: dict[int, dict[int, Any]] = {}
        self._num_left: dict[int, int] = {}
        self._round_of_rank = [0] * num_ranks
        self._is_aborted = False

    def abort(self) -> None:
        """End the meeting: whoever waits or comes gets an error, as when MPI aborts a job."""
        with self._changed:
            self._is_aborted = True
            self._changed.notify_all()

    def exchange(self, rank: int, value: Any, poll: Callable[[], None] | None = None) -> list[Any]:
        """Return the values of all ranks, in order of rank, once the last one has come.

        Args:
            rank: rank of this thread, 0 to num_ranks - 1.
            value: passed to all threads; none of them may change it.
            poll: called every few milliseconds while others are missing.

        Raises:
            MeetingTimeoutError: if a rank is still missing after the timeout.
            MeetingAbortedError: if `abort` was called.
        """
        number = self._round_of_rank[rank]
        self._round_of_rank[rank] += 1
        deadline_s = time.monotonic() + self._timeout_s
        with self._changed:
            values = self._rounds.setdefault(number, {})
            values[rank] = value
            self._changed.notify_all()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_aborted or self._is_full(values), POLL_INTERVAL_S)
                if self._is_full(values):
                    self._leave(number)
                    return [values[other] for other in range(self.num_ranks)]
                if self._is_aborted:
                    raise MeetingAbortedError(f"rank {rank} waits for others, one of which has failed")
            if time.monotonic() > deadline_s:
                missing = [other for other in range(self.num_ranks) if other not in values]
                raise MeetingTimeoutError(f"rank {rank} waited {self._timeout_s:g} s for ranks {missing}")
            if poll is not None:
                poll()

    def _is_full(self, values: dict[int, Any]) -> bool:
        return len(values) == self.num_ranks

    def _leave(self, number: int) -> None:
        self._num_left[number] = self._num_left.get(number, 0) + 1
        if self._num_left[number] == self.num_ranks:
            del self._rounds[number], self._num_left[number]

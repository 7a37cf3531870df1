"""Cores that subtasks of several jobs use at the same time: each of n gets an n-th of their speed.

Emulated machines pace computing with this arithmetic, and the simulator runs on it, so both agree on what
jobs that take no turns do to each other. Times and work are in any one unit: work of 1 takes 1 alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class EvenShares:
    """The work that is left of running subtasks, all at the same speed.

    Args:
        cores: that they share, > 0; each takes one at most.

    Attributes:
        left: work that is left, by job.
        until: the time up to which work has been counted.
    """

    __slots__ = ("_cores", "left", "until")

    def __init__(self, cores: float = 1.0) -> None:
        self._cores = cores
        self.left: dict[str, float] = {}
        self.until = 0.0

    def advance(self, now: float) -> float:
        """Count the work until now, which is no earlier than `until`; returns for how long any was done."""
        elapsed, self.until = now - self.until, now
        if not self.left or not elapsed:
            return 0.0
        each = elapsed * self.speed
        for job in self.left:
            self.left[job] -= each
        return elapsed

    @property
    def speed(self) -> float:
        """Speed of each subtask; at least one must run."""
        return min(1.0, self._cores / len(self.left))

    @property
    def until_next_end(self) -> float:
        """Time from `until` to the end of the subtask that is over first, if none begins before.

        At least one must run. Negative: it should have ended already.
        """
        return min(self.left.values()) / self.speed

    def begin(self, job: str, work: float, now: float) -> None:
        """A job's subtask begins; the others become slower.

        Raises:
            ValueError: a subtask of the job runs already.
        """
        if job in self.left:
            raise ValueError(f"a subtask of job {job} begins while another one of it runs")
        self.end_due(now)
        self.left[job] = work

    def leave(self, job: str, now: float) -> None:
        """A job's subtask stops, if it is not over; the others become faster."""
        self.end_due(now)
        self.left.pop(job, None)

    def end_due(self, now: float) -> None:
        """Count the work until now; each subtask leaves at the very time at which its work is done."""
        while self.left and self.until + self.until_next_end <= now:
            first = min(self.left, key=self.left.__getitem__)
            self.advance(self.until + max(0.0, self.until_next_end))
            del self.left[first]
        self.advance(now)


class PacedResource:
    """A resource of an emulated machine that jobs share: a use takes its time there, longer beside others."""

    def __init__(self) -> None:
        self._shares = EvenShares()
        self._changed = threading.Condition()

    @contextmanager
    def taking(self, job: str, seconds: float) -> Iterator[None]:
        """Let the block take so many seconds of the resource; without an error, return when it has had
        them.

        Args:
            job: only one use of a job is under way at a time.
            seconds: if nobody else uses it.
        """
        with self._changed:
            self._shares.begin(job, seconds, time.monotonic())
            self._changed.notify_all()
        try:
            yield
            with self._changed:
                self._wait_for(job)
        finally:
            with self._changed:
                self._shares.leave(job, time.monotonic())
                self._changed.notify_all()

    def _wait_for(self, job: str) -> None:
        shares = self._shares
        shares.end_due(time.monotonic())
        while job in shares.left:
            self._changed.wait(max(0.0, shares.until + shares.until_next_end - time.monotonic()))
            shares.end_due(time.monotonic())

"""The queues of one machine: whose subtask uses a resource and whose is next; cores that several use at once.

Source: [PS] Sec. 4.3.1. The paper does not say in which order subtasks wait. Here they wait in the order of
tickets, which a machine gives out as the master allows steps. All machines hear of the steps in the same
order, so on all of them the same job comes first. Otherwise two jobs could wait for each other's half of a
step.

Of n subtasks that use the cores at the same time, each gets an n-th of their speed. Emulated machines pace
computing with this arithmetic, and the simulator runs on it, so both agree on what jobs that take no turns do
to each other. Times and work are in any one unit: work of 1 takes 1 alone.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hpcbal.comm.channel import Message
from hpcbal.paramserver.master.messages import Evaluate, Initialise, MayStart


class SubtaskQueue:
    """Who uses one resource of a machine.

    Args:
        places: subtasks that may use it at a time, >= 1.

    Attributes:
        running: jobs whose subtasks use it, in the order in which they began.
        numbers: of each job that has used it, the number of its last subtask: all are counted together.
    """

    def __init__(self, places: int = 1) -> None:
        self._places = places
        self.running: list[str] = []
        self.numbers: dict[str, int] = {}
        self._num_begun = 0
        self._waiting: list[tuple[int, str]] = []

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def ask(self, job: str, ticket: int) -> list[str]:
        """A job's next subtask wants to run. Returns the jobs whose subtasks begin now.

        Raises:
            ValueError: the job already waits or runs: its subtasks follow each other.
        """
        if job in self.running or any(job == other for _, other in self._waiting):
            raise ValueError(f"job {job} asks again while its subtask waits or runs")
        heapq.heappush(self._waiting, (ticket, job))
        return self._begin()

    def leave(self, job: str) -> list[str]:
        """The subtask of a job is over, or it no longer wants to run. Returns the jobs that begin now."""
        if job in self.running:
            self.running.remove(job)
        else:
            self._waiting = [entry for entry in self._waiting if entry[1] != job]
            heapq.heapify(self._waiting)
        return self._begin()

    def _begin(self) -> list[str]:
        begun = []
        while self._waiting and len(self.running) < self._places:
            begun.append(heapq.heappop(self._waiting)[1])
            self.running.append(begun[-1])
            self._num_begun += 1
            self.numbers[begun[-1]] = self._num_begun
        return begun


WITH_TICKET = (Initialise, MayStart, Evaluate)
"""Messages that let subtasks begin: a machine gives the job a ticket when one comes; see `subtasks`."""


@dataclass(frozen=True, slots=True)
class AskForNetwork(Message):
    """Worker -> scheduler: the pull or the push of its turn is next.

    Attributes:
        step: of the turn.
    """

    step: int


@dataclass(frozen=True, slots=True)
class UseNetwork(Message):
    """Scheduler -> all workers of a job that asked: begin."""


@dataclass(frozen=True, slots=True)
class NetworkUsed(Message):
    """Worker -> scheduler: the pull is answered, or the push is applied."""


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

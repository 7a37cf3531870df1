"""Cores, or the link, of a machine in virtual time."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial

from hpcbal.paramserver.sharing.processor import EvenShares
from hpcbal.paramserver.sharing.subtasks import SubtaskQueue
from hpcbal.simulator.serving.clock import NS_PER_S, Clock

AT_ONCE = 1_000_000
"""Places of a resource that all subtasks share."""

DONE_NS = 0.5
"""Left of a subtask that is over; times are whole nanoseconds."""


class Resource:
    """Runs subtasks in the order of the queue that a real machine has; those that run share it evenly.

    Args:
        clock: of the simulation.
        uses_queues: whether subtasks run one at a time.
        over: called when a subtask is over, with its job and its seconds from begin to end.
    """

    def __init__(self, clock: Clock, uses_queues: bool, over: Callable[[str, float], None]) -> None:
        self._clock, self._over = clock, over
        self._queue = SubtaskQueue(1 if uses_queues else AT_ONCE)
        self._needs: dict[str, float] = {}  # of subtasks that wait, in ns
        self._shares = EvenShares()  # of those that run, in ns if they ran alone
        self._began_ns: dict[str, int] = {}
        self._busy_ns = 0.0
        self._look = 0

    def copy(self, over: Callable[[str, float], None]) -> Resource:
        """The same resource of other machines, which go on alike."""
        other = Resource(self._clock, True, over)
        self._advance()
        other._queue = copy.deepcopy(self._queue)
        other._needs, other._began_ns = dict(self._needs), dict(self._began_ns)
        other._shares.left, other._shares.until = dict(self._shares.left), self._shares.until
        other._look_ahead()
        return other

    @property
    def is_idle(self) -> bool:
        """Whether no subtask runs or waits."""
        return not self._shares.left and not self._needs

    def take_busy_s(self) -> float:
        """Seconds for which it has been used since this was last asked."""
        self._advance()
        seconds, self._busy_ns = self._busy_ns / NS_PER_S, 0.0
        return seconds

    def ask(self, job: str, ticket: int, seconds: float) -> None:
        """A subtask wants to run that takes so many seconds alone."""
        self._advance()
        self._needs[job] = seconds * NS_PER_S
        self._begin(self._queue.ask(job, ticket))
        self._look_ahead()

    def _begin(self, jobs: list[str]) -> None:
        for job in jobs:
            self._shares.left[job] = self._needs.pop(job)
            self._began_ns[job] = self._clock.now_ns

    def _advance(self) -> None:
        """Count what has run until now."""
        self._busy_ns += self._shares.advance(self._clock.now_ns)

    def _look_ahead(self) -> None:
        """Look again when the next subtask is over."""
        self._look += 1
        if self._shares.left:
            slack_ns = DONE_NS / 2 * len(self._shares.left)
            delay_ns = math.ceil(max(0.0, self._shares.until_next_end - slack_ns))
            self._clock.at(self._clock.now_ns + delay_ns, partial(self._end, self._look))

    def _end(self, look: int) -> None:
        if look != self._look:
            return  # subtasks have come or gone in between
        self._advance()
        over = [job for job in self._queue.running if self._shares.left[job] <= DONE_NS]
        spans = []
        for job in over:
            del self._shares.left[job]
            spans.append((self._clock.now_ns - self._began_ns.pop(job)) / NS_PER_S)
            self._begin(self._queue.leave(job))
        self._look_ahead()
        for job, seconds in zip(over, spans, strict=True):
            self._over(job, seconds)

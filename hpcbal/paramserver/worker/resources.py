"""Where a worker runs, and when each subtask of a turn may start: alone on its rank, or beside other jobs.

A turn is divided into subtasks ([PS] Sec. 4.3.1), each of which uses one resource of the machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar

from hpcbal.comm.channel import Message
from hpcbal.paramserver.coscheduling.messages import WITH_TICKET, AskForNetwork, NetworkUsed, UseNetwork
from hpcbal.paramserver.coscheduling.subtasks import SubtaskQueue

T = TypeVar("T")

Wait = Callable[[], bool]
"""A condition that a worker waits for."""

Waits = Generator[Wait, None, T]
"""The acts of a worker, one step after the other; it yields the conditions that it waits for."""

Subtask = AbstractContextManager[Iterable[Wait]]
"""Lasts as long as a resource is used; first what to wait for until it may be."""

AT_ONCE = 1_000_000
"""Places of a resource that all subtasks use at the same time."""


class Resources:
    """A rank that one worker has for itself: its subtasks follow each other at once.

    Attributes:
        waits_for_pushes: whether a turn is over only when its updates are applied. False: the worker goes on
            meanwhile.
    """

    waits_for_pushes = False

    def computing(self) -> Subtask:
        """A subtask that uses the machine's cores."""
        return nullcontext(())

    def communicating(self, step: int | None = None) -> Subtask:
        """A subtask that uses the machine's link: a pull, or a push until it is applied.

        Args:
            step: of the turn, in which all workers of the job take part; None: it is of no turn.
        """
        return nullcontext(())


class Busy:
    """How long a resource has been used.

    Args:
        now_s: tells the time, in seconds.

    Attributes:
        seconds: until now, without what is under way.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.seconds = 0.0
        self._since_s: float | None = None

    @property
    def under_way_s(self) -> float:
        """Seconds for which it has been used without a break until now; 0: it is free."""
        since_s = self._since_s
        return 0.0 if since_s is None else self._now_s() - since_s

    def note(self, is_busy: bool) -> None:
        """The resource is used from now on, or no longer."""
        now_s = self._now_s()
        if self._since_s is not None:
            self.seconds += now_s - self._since_s
        self._since_s = now_s if is_busy else None


class MachineQueues:
    """Whose subtask uses the cores and the link of a machine which several jobs share, and whose is next.

    Args:
        now_s: tells the time, in seconds.
        uses_queues: whether subtasks wait for each other. False: jobs compute and talk whenever they like, as
            on a machine that knows nothing of subtasks.
        is_synchronised: whether the scheduler says when pulls and pushes of a step begin, on all machines of
            a job at once.

    Attributes:
        cpu, network: the queues of its resources.
        cpu_busy, network_busy: how long they have been used.
        wakes: by job, what to call when its subtask begins.
    """

    def __init__(
        self, now_s: Callable[[], float], *, uses_queues: bool = True, is_synchronised: bool = False
    ) -> None:
        places = 1 if uses_queues else AT_ONCE
        self.cpu, self.network = SubtaskQueue(places), SubtaskQueue(places)
        self.cpu_busy, self.network_busy = Busy(now_s), Busy(now_s)
        self.is_synchronised = is_synchronised
        self.wakes: dict[str, Callable[[], None]] = {}
        self._tickets = itertools.count(1)

    def next_ticket(self) -> int:
        """The next number in the order in which subtasks wait."""
        return next(self._tickets)

    def begun(self, queue: SubtaskQueue, jobs: list[str]) -> None:
        """A queue has changed, and the subtasks of these jobs begin."""
        busy = self.cpu_busy if queue is self.cpu else self.network_busy
        busy.note(bool(queue.running))
        for job in jobs:
            self.wakes[job]()


class SharedResources(Resources):
    """The resources of one job's worker on a machine that several jobs share.

    Args:
        machine: its queues.
        job: name of the job, unique on the machine.
        send: sends a message to the scheduler.
    """

    waits_for_pushes = True

    def __init__(self, machine: MachineQueues, job: str, send: Callable[[Message], None]) -> None:
        self._machine, self._job, self._send = machine, job, send
        self._ticket = 0
        self._may_communicate = False

    def hear(self, message: Message) -> bool:
        """A message for the job has come; returns whether it concerns these resources alone."""
        if isinstance(message, UseNetwork):
            self._may_communicate = True
            return True
        if isinstance(message, WITH_TICKET):
            self._ticket = self._machine.next_ticket()
        return False

    @contextmanager
    def computing(self) -> Iterator[Iterable[Wait]]:
        with self._using(self._machine.cpu) as begun:
            yield begun

    @contextmanager
    def communicating(self, step: int | None = None) -> Iterator[Iterable[Wait]]:
        if step is None or not self._machine.is_synchronised:
            with self._using(self._machine.network) as begun:
                yield begun
            return
        is_granted = False

        def granted() -> Waits[None]:
            nonlocal is_granted
            self._send(AskForNetwork(step))
            yield lambda: self._may_communicate
            self._may_communicate, is_granted = False, True

        try:
            with self._using(self._machine.network, granted()) as begun:
                yield begun
        finally:
            if is_granted:
                self._send(NetworkUsed())

    @contextmanager
    def _using(self, queue: SubtaskQueue, first: Iterable[Wait] = ()) -> Iterator[Iterable[Wait]]:
        """Wait for a resource, and use it."""
        machine, job = self._machine, self._job

        def begun() -> Waits[None]:
            yield from first
            machine.begun(queue, queue.ask(job, self._ticket))
            yield lambda: job in queue.running

        try:
            yield begun()
        finally:
            machine.begun(queue, queue.leave(job))

"""A machine that executors of several jobs share in virtual time; as `engine.shared_machine`."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from hpcbal.comm.channel import Message
from hpcbal.paramserver.sharing.messages import WITH_TICKET, AskForNetwork, NetworkUsed, UseNetwork
from hpcbal.paramserver.sharing.subtasks import SubtaskQueue
from hpcbal.simulator.serving.clock import Clock
from hpcbal.simulator.serving.place import TimedWaits, Waits, sleep
from hpcbal.simulator.sharing.host import HostCores
from hpcbal.simulator.sharing.job import Turns
from hpcbal.simulator.sharing.resource import AT_ONCE, Resource


@dataclass(frozen=True, slots=True)
class StartTimes:
    """What a start and a stop of a job take on each of its machines, in seconds.

    Attributes:
        make_s: of a core, to make the executor's blocks.
        read_s, save_s: of its disk.
    """

    make_s: float
    read_s: float
    save_s: float


class SharedMachine:
    """One rank with the executors of several jobs.

    Args:
        clock: of the simulation.
        turns: whether jobs take turns.
        host: cores that all machines share.

    Attributes:
        cpu: its cores.
        network: whose pulls and pushes use its link.
        tenants: by job.
        is_synchronised: whether the scheduler says when pulls and pushes of a step begin.
    """

    def __init__(self, clock: Clock, turns: Turns, host: HostCores) -> None:
        self.clock, self.host = clock, host
        self.cpu = Resource(clock, turns.uses_queues, self._computed)
        self.network = SubtaskQueue(1 if turns.uses_queues else AT_ONCE)
        self.is_synchronised = turns.is_synchronised
        self.tenants: dict[str, Tenant] = {}
        self._tickets = itertools.count(1)
        self._cpu_s = self._network_s = 0.0
        self._busy_since_s: float | None = None

    def next_ticket(self) -> int:
        """The next number in the order in which subtasks wait."""
        return next(self._tickets)

    def used_s(self) -> tuple[float, float]:
        """For how long cores and link have been used until now."""
        self._cpu_s += self.cpu.take_busy_s()
        under_way_s = 0.0 if self._busy_since_s is None else self.clock.now_s - self._busy_since_s
        return self._cpu_s, self._network_s + under_way_s

    def begun(self, jobs: list[str]) -> None:
        """The network queue has changed; subtasks of these jobs begin."""
        if self._busy_since_s is not None:
            self._network_s += self.clock.now_s - self._busy_since_s
        self._busy_since_s = self.clock.now_s if self.network.running else None
        for job in jobs:
            self.clock.after(0.0, self.tenants[job].look)

    def _computed(self, job: str, seconds: float) -> None:
        self.tenants[job].computed(seconds)


class Tenant:
    """The place of one job's executor on a shared machine; see `serving.place.Place`.

    Args:
        machine: the machine.
        job: its name.
        report: sends a message to the scheduler.
        look: lets the executor look whether it may go on.
        times: what a start and a stop take here.
    """

    waits_for_pushes = True

    def __init__(
        self,
        machine: SharedMachine,
        job: str,
        report: Callable[[Message], None],
        look: Callable[[], None],
        times: StartTimes,
    ) -> None:
        self._machine, self._job, self._report, self.look = machine, job, report, look
        self._times = times
        self._ticket = 0
        self._may_communicate = self._is_granted = False
        self._computed_s: float | None = None
        machine.tenants[job] = self

    def note(self, message: Message) -> None:
        """A message for the executor has come."""
        if isinstance(message, UseNetwork):
            self._may_communicate = True
        elif isinstance(message, WITH_TICKET):
            self._ticket = self._machine.next_ticket()

    def loading(self) -> Waits:
        """See `Place`; making blocks takes the host's cores, whatever the machine computes."""
        yield from self._machine.host.work(self._times.make_s, self.look)
        yield from sleep(self._machine.clock, self.look, self._times.read_s)

    def saving(self) -> Waits:
        """See `Place`."""
        yield from sleep(self._machine.clock, self.look, self._times.save_s)

    def communicating(self, step: int | None = None) -> Waits:
        """See `Place`."""
        network = self._machine.network
        if step is not None and self._machine.is_synchronised:
            self._report(AskForNetwork(step))
            yield lambda: self._may_communicate
            self._may_communicate, self._is_granted = False, True
        self._machine.begun(network.ask(self._job, self._ticket))
        yield lambda: self._job in network.running

    def communicated(self) -> None:
        """See `Place`."""
        self._machine.begun(self._machine.network.leave(self._job))
        if self._is_granted:
            self._is_granted = False
            self._report(NetworkUsed())

    def computing(self, seconds: float) -> TimedWaits:
        """See `Place`; jobs that compute at the same time share the cores."""
        self._machine.cpu.ask(self._job, self._ticket, seconds)
        yield lambda: self._computed_s is not None
        spent_s, self._computed_s = self._computed_s, None
        assert spent_s is not None
        return spent_s

    def computed(self, seconds: float) -> None:
        """The CPU subtask is over."""
        self._computed_s = seconds
        self.look()

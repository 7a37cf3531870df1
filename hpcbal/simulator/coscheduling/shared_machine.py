"""A machine that executors of several jobs share in virtual time; as `engine.shared_machine`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from hpcbal.comm.channel import Message
from hpcbal.paramserver.worker.resources import MachineQueues, SharedResources, Waits
from hpcbal.simulator.coscheduling.job import Turns
from hpcbal.simulator.paramserver.clock import Clock, Cores, sleep
from hpcbal.simulator.paramserver.executor import VirtualResources


@dataclass(frozen=True, slots=True)
class StartTimes:
    """Seconds of a start and a stop of a job on each of its machines.

    Attributes:
        make_s: of a core, to make the executor's blocks.
        read_s, save_s: of its disk.
    """

    make_s: float
    read_s: float
    save_s: float


class VirtualMachine(MachineQueues):
    """One rank with the executors of several jobs.

    Args:
        clock: of the simulation.
        turns: whether jobs take turns.
        host: cores that all machines share.

    Attributes:
        cores: its own cores.
        link: of jobs whose frames are not simulated.
    """

    def __init__(self, clock: Clock, turns: Turns, host: Cores) -> None:
        super().__init__(
            lambda: clock.now_s, uses_queues=turns.uses_queues, is_synchronised=turns.is_synchronised
        )
        self.clock, self.host = clock, host
        self.cores, self.link = Cores(clock), Cores(clock)

    def used_s(self) -> tuple[float, float]:
        """For how long cores and link have been used until now."""
        cpu, network = self.cpu_busy, self.network_busy
        return cpu.seconds + cpu.under_way_s, network.seconds + network.under_way_s


class VirtualTenant(VirtualResources):
    """The resources of one job's executor on a shared machine.

    Args:
        machine: the machine.
        rank: of the machine.
        job: its name.
        send: sends a message to the scheduler.
        times: what a start and a stop take here.
    """

    def __init__(
        self, machine: VirtualMachine, rank: int, job: str, send: Callable[[Message], None], times: StartTimes
    ) -> None:
        super().__init__(machine.clock)
        self._machine, self._job, self._times = machine, job, times
        self._name = f"{job} on {rank}"
        self.subtasks: SharedResources = SharedResources(machine, job, send)

    def hear(self, message: Message, look: Callable[[], None]) -> bool:
        """A message for the executor has come, who goes on by `look`; returns whether it is for them."""
        self._machine.wakes[self._job] = partial(self.clock.after, 0.0, look)
        return self.subtasks.hear(message)

    def leave(self) -> None:
        """The job is gone."""
        del self._machine.wakes[self._job]

    def compute(self, seconds: float, look: Callable[[], None]) -> Waits[float]:
        return self._machine.cores.work(self._job, seconds, look)

    def load(self, look: Callable[[], None]) -> Waits[None]:
        """Making blocks takes the host's cores, whatever the machine computes."""
        yield from self._machine.host.work(self._name, self._times.make_s, look)
        yield from sleep(self.clock, look, self._times.read_s)

    def save(self, look: Callable[[], None]) -> Waits[None]:
        yield from sleep(self.clock, look, self._times.save_s)

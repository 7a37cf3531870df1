"""A machine that executors of several jobs share, each in a thread of its own.

One thread, the machine's, polls for all of them and serves their parameters, whatever the others do. A job's
thread runs its executor as if it were alone: where that would wait, the thread sleeps until something has
happened for its job. All hold one lock while they touch the engine's state, and give it back to sleep, to
compute and to read or write files. So nothing of the engine runs at the same time, but computing does.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TypeVar

from hpcbal.comm.channel import Channel, Message
from hpcbal.paramserver.coscheduling.subtasks import PacedResource
from hpcbal.paramserver.engine.buffers import Buffers, MachineMemory
from hpcbal.paramserver.engine.rank_resources import RankResources, in_thread
from hpcbal.paramserver.engine.reactor import FIRST_SLEEP_S, LATE_SHARE, MAX_SLEEP_S, SPIN_S, Reactor
from hpcbal.paramserver.engine.spilled_samples import SpilledSamples
from hpcbal.paramserver.engine.wire import PacedLink, Transport
from hpcbal.paramserver.spilling import LocalDisk, MachineSpill
from hpcbal.paramserver.worker.loading import JobSetup
from hpcbal.paramserver.worker.resources import MachineQueues, SharedResources
from hpcbal.paramserver.worker.samples import WorkerSamples
from hpcbal.policies.grouping.memory import JobMemory

SCHEDULER_RANK = 0

T = TypeVar("T")


class SharedMachine(MachineQueues):
    """One rank with the executors of several jobs.

    Args:
        bytes_per_s: of its link in each direction, in emulation; None: as fast as it is.
        uses_queues, is_synchronised: see `MachineQueues`.
        memory_bytes: most that all jobs hold together; None: no limit.
        disk: where samples go that do not fit; None: nowhere.
        alpha: share of its data blocks that every job has on disk; None: as many as it takes.

    Attributes:
        lock: held while the engine's state is touched.
        link: None: not paced.
        processor: shared by jobs whose computing is paced.
        memory: what jobs hold.
        spill: what they have on disk; None: nothing.
    """

    def __init__(
        self,
        bytes_per_s: float | None = None,
        *,
        uses_queues: bool = True,
        is_synchronised: bool = False,
        memory_bytes: int | None = None,
        disk: LocalDisk | None = None,
        alpha: float | None = None,
    ) -> None:
        super().__init__(time.monotonic, uses_queues=uses_queues, is_synchronised=is_synchronised)
        self.lock = threading.Lock()
        self.link = None if bytes_per_s is None else PacedLink(bytes_per_s)
        self.processor = PacedResource()
        self.memory = MachineMemory(memory_bytes)
        self.spill = None if disk is None else MachineSpill(self.memory, disk, alpha)
        self.memory.relief = self.spill
        self.tenants: dict[str, Tenant] = {}
        self._awake = threading.Event()
        self._active_s = time.monotonic()

    def add(self, tenant: Tenant) -> None:
        """A job comes; the caller holds the lock."""
        self.tenants[tenant.job] = tenant
        self.wakes[tenant.job] = tenant.wake

    def remove(self, job: str) -> None:
        """A job has left; the caller holds the lock."""
        del self.tenants[job], self.wakes[job]
        if self.spill is not None:
            self.spill.remove(job)

    def poll(self) -> bool:
        """Handle what is there for any job; the caller holds the lock. Returns whether there was anything."""
        happened = False
        if self.link is not None and self.link.poll(time.monotonic()):
            happened = True
            for tenant in self.tenants.values():  # a frame that has arrived may be anyone's
                tenant.wake()
        for tenant in list(self.tenants.values()):
            if tenant.poll():
                happened = True
                tenant.wake()
        return happened

    def wake(self) -> None:
        """Poll soon: frames have been sent, so answers will come."""
        self._awake.set()

    def pause(self, happened: bool) -> None:
        """Sleep between two polls, the longer the less happens; the caller does not hold the lock."""
        now_s = time.monotonic()
        if happened or self._awake.is_set():
            self._awake.clear()
            self._active_s = now_s
            time.sleep(0)  # the lock is another thread's turn
            return
        waited_s = now_s - self._active_s
        if waited_s < SPIN_S:
            time.sleep(0)
        else:
            self._awake.wait(min(max(FIRST_SLEEP_S, LATE_SHARE * waited_s), MAX_SLEEP_S))


class Tenant(RankResources):
    """The resources of one job's executor on a shared machine.

    Args:
        machine: the machine.
        job: name of the job, unique on the machine.
        memory: what it needs, as estimated.
        num_machines: on which it runs.

    Attributes:
        spilled: its data blocks, if the machine has a disk.
    """

    def __init__(
        self, machine: SharedMachine, job: str, memory: JobMemory | None = None, num_machines: int = 1
    ) -> None:
        super().__init__()
        self.machine, self.job = machine, job
        self._memory, self._num_machines = memory or JobMemory(), num_machines
        self.spilled: SpilledSamples | None = None
        self.link = machine.link
        self.changed = threading.Condition(machine.lock)
        self.inbox: deque[Message] = deque()
        self._channel: Channel | None = None
        self.subtasks: SharedResources = SharedResources(machine, job, self._send)
        self._reactor: SharedReactor | None = None

    def deliver(self, message: Message) -> None:
        """A control message for the job has come; the caller holds the lock."""
        if not self.subtasks.hear(message):
            self.inbox.append(message)
        self.wake()

    def _send(self, message: Message) -> None:
        assert self._channel is not None
        self._channel.send(SCHEDULER_RANK, message)

    def wake(self) -> None:
        """Something has happened for the job; the caller holds the lock."""
        self.changed.notify_all()

    def poll(self) -> bool:
        """Handle frames of the job; returns whether there were any."""
        return self._reactor is not None and self._reactor.poll()

    def reactor(
        self, transport: Transport, channel: Channel, on_message: Callable[[Message], None]
    ) -> Reactor:
        self._channel = channel
        self._reactor = SharedReactor(self, transport, channel, on_message)
        return self._reactor

    def buffers(self, limit_bytes: int | None) -> Buffers:
        return self.machine.memory.open()

    def samples(self, job: JobSetup, on_change: Callable[[], None]) -> WorkerSamples:
        spill = self.machine.spill
        if spill is None or job.is_async:
            return super().samples(job, on_change)
        samples = SpilledSamples(
            job.cut,
            job.seed,
            job.steps,
            spill.disk,
            self.machine.memory.make_room,
            self.aside,
            on_change,
            partial(spill.plan, self.job),
            spill.note_turn,
        )
        self.spilled = samples
        spill.add(self.job, samples, self._memory, self._num_machines, job.steps)
        return samples

    @contextmanager
    def aside(self) -> Iterator[None]:
        self.machine.lock.release()
        try:
            yield
        finally:
            self.machine.lock.acquire()

    def apart(self, work: Callable[[], T]) -> Future[T]:
        def wake() -> None:
            with self.machine.lock:
                self.wake()

        return in_thread(work, then=wake)

    def taking(self, reactor: Reactor, seconds: float) -> AbstractContextManager[None]:
        """See `RankResources`; jobs that compute at a time share the cores. The machine serves meanwhile."""
        return self.machine.processor.taking(self.job, seconds)


class SharedReactor(Reactor):
    """The loop of an executor whose machine polls for it.

    Args:
        tenant: where the executor runs.
        transport, channel, on_message: see `Reactor`. Messages come through the tenant.
    """

    def __init__(
        self,
        tenant: Tenant,
        transport: Transport,
        channel: Channel,
        on_message: Callable[[Message], None],
    ) -> None:
        super().__init__(transport, channel, on_message)
        self._tenant = tenant

    def poll(self) -> bool:
        """Handle frames and timers, in the machine's thread."""
        happened = self.transport.poll()
        now_s = time.monotonic()
        for poll in self._polls:
            happened |= poll(now_s)
        return happened

    def listen(self) -> None:
        """See `Reactor`; frames are the machine's business."""
        self.wait_until(lambda: True)

    def wait_until(self, condition: Callable[[], bool], until_s: float | None = None) -> bool:
        """See `Reactor`; the job's thread sleeps until the machine wakes it."""
        inbox, changed = self._tenant.inbox, self._tenant.changed
        if not condition():
            self._tenant.machine.wake()  # what is waited for may be about to come
        while True:
            while inbox:
                self._on_message(inbox.popleft())
            if condition():
                return True
            timeout_s = None if until_s is None else until_s - time.monotonic()
            if timeout_s is not None and timeout_s <= 0:
                return False
            changed.wait(timeout_s)

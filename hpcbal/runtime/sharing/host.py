"""A machine that several jobs share: one thread serves all of them, and each has a thread of its own."""

from __future__ import annotations

import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hpcbal import env
from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.comm.channel import Channel, Message
from hpcbal.config import JobsConfig, SharedJobConfig
from hpcbal.errors import HpcbalError, UserCodeError
from hpcbal.paramserver.contract import DataBlocks
from hpcbal.paramserver.engine.executor import Executor
from hpcbal.paramserver.engine.shared_machine import SharedMachine, Tenant
from hpcbal.paramserver.engine.transport import Transport
from hpcbal.paramserver.machine import messages
from hpcbal.paramserver.spilling import LocalDisk
from hpcbal.paramserver.store.layout import Layout
from hpcbal.paramserver.worker.job import EmulatedMachine, Job
from hpcbal.runtime.handoff.submissions import append_import_roots
from hpcbal.runtime.paramserver.loading import LoadedJob, load_job
from hpcbal.runtime.paramserver.opening import JOBS
from hpcbal.runtime.paramserver.play import CheckpointFiles
from hpcbal.runtime.rank.context import LiveRank
from hpcbal.runtime.sharing.protocol import (
    Forget,
    ForJob,
    HostJob,
    Leave,
    Left,
    MachineLoad,
    SpilledJob,
)
from hpcbal.telemetry import RunDirectory

IN_TOUCH_INTERVAL_S = 0.2
"""Between looks at signals and at the time of the last heartbeat."""

LOAD_INTERVAL_S = 1.0
"""Between reports of how busy the machine is."""

LEAST_SHARE_OF_TIMEOUT = 0.5
"""Of `stall_timeout_s`: a computation that takes longer may hang, so the machine gives no sign of life."""


class JobChannel(Channel):
    """The control messages of one start of a job; those that come are handed to its tenant.

    Args:
        channel: of the rank.
        start: number of the start.
    """

    def __init__(self, channel: Channel, start: int) -> None:
        self._channel, self._start = channel, start

    @property
    def rank(self) -> int:
        return self._channel.rank

    @property
    def size(self) -> int:
        return self._channel.size

    def send(self, destination: int, message: Message) -> None:
        self._channel.send(destination, ForJob(self._start, message))

    def send_to_all(self, destinations: Sequence[int], message: Message) -> None:
        self._channel.send_to_all(destinations, ForJob(self._start, message))

    def receive(self) -> tuple[int, Message] | None:
        """Nothing: messages come through the tenant."""
        return None

    def is_sent(self) -> bool:
        return self._channel.is_sent()


class MachineHost:
    """One rank beside the scheduler.

    Args:
        rank: this rank.
        config: the configuration.
        transport_of: makes the transport of a start.
    """

    def __init__(self, rank: LiveRank, config: JobsConfig, transport_of: Callable[[int], Transport]) -> None:
        self._rank, self._config, self._transport_of = rank, config, transport_of
        emulated = config.machine_of(rank.roles.executor_ranks.index(rank.rank))
        self._speed = 1.0 if emulated is None else emulated.speed
        self.machine = SharedMachine(
            None if emulated is None else emulated.bandwidth,
            uses_queues=config.schedule.paradigm != "naive",
            is_synchronised=config.schedule.takes_turns_at_links,
            memory_bytes=config.memory_per_node,
            disk=disk_of(config, None if emulated is None else emulated.disk),
            alpha=config.spill.fixed_alpha,
        )
        self._first_bytes = resident_bytes()
        self._loaded: dict[str, LoadedJob] = {}
        self._tenants: dict[int, Tenant] = {}
        self._crash: BaseException | None = None
        self._exit_code: int | None = None
        self._began_s = time.monotonic()
        self._in_touch_due_s = self._load_due_s = 0.0

    def run(self) -> int:
        """Serve until the scheduler says `Leave`; returns its exit code."""
        machine, channel = self.machine, self._rank.channel
        while self._exit_code is None:
            if self._crash is not None:
                raise self._crash
            with machine.lock:
                happened = machine.poll()
                while (found := channel.receive()) is not None:
                    self._take(found[1])
                    happened = True
                self._keep_in_touch()
            machine.pause(happened)
        return self._exit_code

    def _take(self, message: Message) -> None:
        match message:
            case ForJob(start, inner):
                if start in self._tenants:  # `Finish` may cross the end of an executor that has failed
                    self._tenants[start].deliver(inner)
            case HostJob():
                self._host(message)
            case Forget(job):
                self._loaded.pop(job, None)
            case Leave(exit_code):
                self._exit_code = exit_code
            case _:
                raise TypeError(f"a machine got {message!r}")

    def _keep_in_touch(self) -> None:
        now_s = time.monotonic()
        if now_s < self._in_touch_due_s:
            return
        self._in_touch_due_s = now_s + IN_TOUCH_INTERVAL_S
        if self.machine.cpu_busy.under_way_s > LEAST_SHARE_OF_TIMEOUT * self._config.stall_timeout_s:
            return  # it may hang, so let the scheduler hear nothing
        jobs = ", ".join(self.machine.cpu.running)
        self._rank.keep_in_touch(f"computing {jobs}" if jobs else "serving")
        if now_s >= self._load_due_s:
            self._load_due_s = now_s + LOAD_INTERVAL_S
            self._send_load()

    def _send_load(self) -> None:
        machine = self.machine
        load = MachineLoad(
            machine.cpu_busy.seconds + machine.cpu_busy.under_way_s,
            machine.network_busy.seconds + machine.network_busy.under_way_s,
            time.monotonic() - self._began_s,
            machine.memory.most_bytes,
            max(0, resident_bytes() - self._first_bytes),
            self._spilled(),
        )
        self._rank.channel.send(SCHEDULER_RANK, load)

    def _spilled(self) -> tuple[SpilledJob, ...]:
        return tuple(
            SpilledJob(
                start,
                samples.num_blocks,
                samples.num_on_disk,
                samples.disk_bytes,
                samples.stop_s,
                samples.read_s,
            )
            for start, tenant in self._tenants.items()
            if (samples := tenant.spilled) is not None
        )

    # ---- jobs ----------------------------------------------------------------------------------

    def _host(self, order: HostJob) -> None:
        tenant = Tenant(self.machine, order.job, order.memory, order.num_machines)
        self._tenants[order.start] = tenant
        self.machine.add(tenant)
        name = f"{order.job} {order.start}"
        threading.Thread(target=self._work, args=(order, tenant), name=name, daemon=True).start()

    def _work(self, order: HostJob, tenant: Tenant) -> None:
        """A job's thread, from its start on this machine until it leaves."""
        try:
            try:
                loaded = self._load(order)
            except (UserCodeError, HpcbalError) as error:
                with self.machine.lock:
                    self._fail(order, tenant, error)
                    self._leave(order)
                return
            with self.machine.lock:
                executor = self._executor(order, tenant, loaded)
                executor.run()
                executor.close()
                self._leave(order)
        except BaseException as error:  # raised in the machine's thread, which ends the run
            self._crash = error
            self.machine.wake()

    def _load(self, order: HostJob) -> LoadedJob:
        if order.job not in self._loaded:
            append_import_roots(order.import_roots)
            self._loaded[order.job] = load_job(order.config)
        return self._loaded[order.job]

    def _executor(self, order: HostJob, tenant: Tenant, loaded: LoadedJob) -> Executor:
        config = order.config
        emulated = EmulatedMachine(config.seconds_per_sample, self._speed)
        files = CheckpointFiles(
            RunDirectory(self._rank.output, JOBS).job(order.job), self._rank.rank, order.saved
        )
        job = engine_job(loaded, config, self._config.seed_of(config), order)
        channel = JobChannel(self._rank.channel, order.start)
        return Executor(self._transport_of(order.start), channel, job, emulated, files, place=tenant)

    def _fail(self, order: HostJob, tenant: Tenant, error: HpcbalError) -> None:
        """Report that the job cannot be opened here, and wait for its end."""
        failed = messages.Failed("app" if isinstance(error, UserCodeError) else "error", str(error))
        self._rank.channel.send(SCHEDULER_RANK, ForJob(order.start, failed))
        while not any(isinstance(message, messages.Finish) for message in tenant.inbox):
            tenant.changed.wait()

    def _leave(self, order: HostJob) -> None:
        self._send_load()  # the run may end before the next one is due
        self.machine.remove(order.job)
        del self._tenants[order.start]
        self._rank.channel.send(SCHEDULER_RANK, Left(order.start))


def disk_of(config: JobsConfig, bytes_per_s: float | None) -> LocalDisk | None:
    """Where a machine keeps samples that do not fit; None: nowhere.

    Args:
        config: the configuration.
        bytes_per_s: of the disk, in emulation; None: as fast as it is.

    Raises:
        SpillError: files cannot be made there.
    """
    plan = config.spill
    if not plan.is_on or (plan.alpha == "auto" and config.memory_per_node is None):
        return None
    directory = plan.directory or env.read("SLURM_TMPDIR") or tempfile.gettempdir()
    disk = LocalDisk(Path(directory), bytes_per_s)
    disk.check()
    return disk


def resident_bytes() -> int:
    """The most memory that this process has taken so far."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def engine_job(loaded: LoadedJob, config: SharedJobConfig, seed: int, order: HostJob) -> Job:
    """What an executor of a start must know of its job."""
    return Job(
        loaded.app,
        seed,
        config.mini_batch,
        DataBlocks(loaded.num_samples, order.cut.data),
        Layout(tuple(loaded.tables.values()), order.cut.parameters),
        staleness=config.staleness,
    )

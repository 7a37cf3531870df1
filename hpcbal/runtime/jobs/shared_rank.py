"""A machine that several jobs share: one thread serves all of them, and each has a thread of its own."""

from __future__ import annotations

import logging
import resource
import sys
import tempfile
import threading
import time
from pathlib import Path

from hpcbal import env
from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.comm.channel import Message
from hpcbal.config import JobsConfig, SharedJobConfig
from hpcbal.errors import HpcbalError, UserCodeError
from hpcbal.paramserver.engine.executor import Executor
from hpcbal.paramserver.engine.shared_machine import SharedMachine, Tenant
from hpcbal.paramserver.engine.wire import Transport
from hpcbal.paramserver.master import messages
from hpcbal.paramserver.spilling import LocalDisk
from hpcbal.paramserver.worker.loading import EmulatedMachine
from hpcbal.runtime.handoff.submissions import append_import_roots
from hpcbal.runtime.jobs.background import HangWatch, stacks_of
from hpcbal.runtime.jobs.job_rank import IN_TOUCH_INTERVAL_S, JobChannel, TransportOf, executor_of
from hpcbal.runtime.jobs.loading import LoadedJob, load_job
from hpcbal.runtime.jobs.messages import (
    EndRun,
    Forget,
    ForJob,
    HostJob,
    Left,
    MachineLoad,
    SpilledJob,
)
from hpcbal.runtime.rank.context import LiveRank
from hpcbal.telemetry.files.run_directory import RunDirectory

log = logging.getLogger(__name__)

LOAD_INTERVAL_S = 1.0
"""Between reports of how busy the machine is."""


class TenantChannel(JobChannel):
    """The control messages of one start of a job; those that come are handed to its tenant."""

    def receive(self) -> tuple[int, Message] | None:
        """Return nothing: messages come through the tenant."""
        return None


class SharedRank:
    """One rank beside the scheduler.

    Args:
        rank: this rank.
        config: the configuration.
        transport_of: makes the transport of a start.
    """

    def __init__(self, rank: LiveRank, config: JobsConfig, transport_of: TransportOf) -> None:
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
        # By number of a start.
        self._tenants: dict[int, Tenant] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._transports: dict[int, Transport] = {}
        self._hangs = HangWatch(config.stall_timeout_s)
        self._given_up: set[int] = set()  # starts that may hang
        self._crash: BaseException | None = None
        self._exit_code: int | None = None
        self._began_s = time.monotonic()
        self._in_touch_due_s = self._load_due_s = 0.0

    def run(self) -> int:
        """Serve until the scheduler says `EndRun`; returns its exit code."""
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
        if self._given_up:
            machine.lock.acquire()  # for good: what hangs must not go on with what is freed here
            for start in self._given_up:
                self._transports[start].close()
        return self._exit_code

    def _take(self, message: Message) -> None:
        match message:
            case ForJob(start, inner):
                if start in self._tenants:  # `EndStart` may cross the end of an executor that has failed
                    self._tenants[start].deliver(inner)
                    if start in self._given_up and isinstance(inner, messages.EndStart):
                        self._rank.channel.send(SCHEDULER_RANK, Left(start, hangs=True))
            case HostJob():
                self._host(message)
            case Forget(job):
                self._loaded.pop(job, None)
            case EndRun(exit_code):
                self._exit_code = exit_code
            case _:
                raise TypeError(f"a machine got {message!r}")

    def _keep_in_touch(self) -> None:
        now_s = time.monotonic()
        if now_s < self._in_touch_due_s:
            return
        self._in_touch_due_s = now_s + IN_TOUCH_INTERVAL_S
        cpu = self.machine.cpu
        for job in self._hangs.look({job: cpu.numbers[job] for job in cpu.running}, now_s):
            self._give_up(job)
        jobs = ", ".join(cpu.running)
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
        thread = threading.Thread(target=self._work, args=(order, tenant), name=name, daemon=True)
        self._threads[order.start] = thread
        thread.start()

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
        assert isinstance(order.config, SharedJobConfig)
        emulated = EmulatedMachine(order.config.seconds_per_sample, self._speed)
        channel = TenantChannel(self._rank.channel, order.start)
        transport = self._transports[order.start] = self._transport_of(order.start)
        return executor_of(order, loaded, self._rank, transport, channel, emulated, resources=tenant)

    def _fail(self, order: HostJob, tenant: Tenant, error: HpcbalError) -> None:
        """Report that the job cannot be opened here, and wait for its end."""
        failed = messages.Failed("app" if isinstance(error, UserCodeError) else "error", str(error))
        self._rank.channel.send(SCHEDULER_RANK, ForJob(order.start, failed))
        while not any(isinstance(message, messages.EndStart) for message in tenant.inbox):
            tenant.changed.wait()

    def _give_up(self, job: str) -> None:
        """Report that a job may hang, and let others have the cores: its thread cannot be ended."""
        start = next(number for number, tenant in self._tenants.items() if tenant.job == job)
        self._given_up.add(start)
        machine, limit_s = self.machine, self._config.stall_timeout_s
        stacks = stacks_of(self._threads[start].name)
        log.warning("%s has computed for more than %g s:\n%s", job, limit_s, stacks)
        machine.begun(machine.cpu, machine.cpu.leave(job))
        rank, output = self._rank.rank, RunDirectory(self._rank.output)
        problem = (
            f"no sign of life for {limit_s:g} s (stall_timeout_s) of a computation on rank {rank}; its stack "
            f"is in {output.rank_log(rank)}. If it does not hang, raise stall_timeout_s"
        )
        failed = messages.Failed("stalled", problem)
        self._rank.channel.send(SCHEDULER_RANK, ForJob(start, failed))

    def _leave(self, order: HostJob) -> None:
        self._send_load()  # the run may end before the next one is due
        self.machine.remove(order.job)
        del self._tenants[order.start], self._threads[order.start]
        self._transports.pop(order.start, None)  # a job that could not be opened has none
        if order.start in self._given_up:
            self._given_up.discard(order.start)  # it went on after all, and the scheduler has been told
        else:
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

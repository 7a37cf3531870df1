"""`hpcbal profile --operations`: take a few turns with one worker and one server, and write their trace."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.comm.channel import Message
from hpcbal.config import ParamServerConfig, add_import_roots, resolved_yaml
from hpcbal.errors import HpcbalError
from hpcbal.forecast.engine_trace import EngineStep, Messages, ServiceKey, trace_of_engine
from hpcbal.forecast.trace import Resource, Trace
from hpcbal.forecast.trace_file import lines_of_trace
from hpcbal.paramserver.engine.wire import FrameKind
from hpcbal.paramserver.master import messages
from hpcbal.paramserver.master.events import EndRequested, Event
from hpcbal.processes import say
from hpcbal.runtime.handoff.launch_dir import RunRequest, output_of
from hpcbal.runtime.jobs.checkpoint import JOBS_FOLDER
from hpcbal.runtime.jobs.executors import first_owners, first_roles
from hpcbal.runtime.jobs.job import Job, Start
from hpcbal.runtime.jobs.job_rank import ReportedTrace
from hpcbal.runtime.jobs.loading import LoadedJob, first_cut
from hpcbal.runtime.jobs.master import JobPlacement, Master
from hpcbal.runtime.jobs.record import JobsProgress
from hpcbal.runtime.rank.context import LiveRank
from hpcbal.telemetry.claim.directory import claim_output
from hpcbal.telemetry.claim.run_lock import RunLock
from hpcbal.telemetry.files.atomic_file import write_atomic
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.ledger.run import Outcome

log = logging.getLogger(__name__)

WARM_UP = 5
"""First turns, which are not recorded: pages and caches are cold."""

ENDLESS = 1 << 40
"""Epochs: a profiling run ends when it has its turns."""


@dataclass(frozen=True, slots=True)
class OpenedProfile:
    """A directory that this process holds until `close`, for a profiling run.

    Attributes:
        request: the request of this start.
        config: of the profiling run: that of the file, with one worker and one server.
        run: paths of the files.
        lock: of the directory.
        num_steps: to record, >= 1.
    """

    request: RunRequest
    config: ParamServerConfig
    run: RunDirectory
    lock: RunLock
    num_steps: int

    def close(self) -> None:
        """Give the directory back."""
        self.lock.release()


def open_profile(request: RunRequest, config: ParamServerConfig, num_steps: int) -> OpenedProfile:
    """Open or create the run's directory; a run of the same file may follow or come before.

    Raises:
        OutputError: if the directory is not writable, full, locked, not made by hpcbal, or another run's.
    """
    add_import_roots(request.config_path)
    run = RunDirectory(output_of(request, config).root, JOBS_FOLDER)
    claim, lock = claim_output(run.root, resolved_yaml(config), False, JOBS_FOLDER)
    claim.record()
    for note in claim.notes:
        log.info("%s: %s", run.root, note)
    return OpenedProfile(request, profiled(config), run, lock, num_steps)


def profiled(config: ParamServerConfig) -> ParamServerConfig:
    """The same job with the first worker and the first server of the file, without objectives and an end."""
    kinds = sum(machine.count for machine in config.machines)
    asked = sum(1 if count == "auto" else count for count in (config.workers, config.servers))
    roles = first_roles(config, range(max(2, kinds, asked)))
    emulated = [config.machine_of(executor) for executor in (roles.workers[0], roles.servers[0])]
    machines = tuple(each.model_copy(update={"count": 1}) for each in emulated if each is not None)
    return config.model_copy(
        update={
            "workers": 1,
            "servers": 1,
            "machines": machines,
            "tune": config.tune.model_copy(update={"enabled": False}),
            "stop": config.stop.model_copy(update={"max_epochs": ENDLESS}),
            "objective": config.objective.model_copy(update={"every": ENDLESS}),
            "checkpoint": config.checkpoint.model_copy(update={"interval_s": float(ENDLESS)}),
        }
    )


ROUTE = "parameters"
"""Name of the one route of a step: tables and rows go together."""


@dataclass(frozen=True, slots=True)
class OperationsRecorded(Message):
    """An executor -> the master, at the end of a profiling run.

    Attributes:
        steps: of a worker; none of others.
        services: of a server: seconds by request.
    """

    steps: tuple[EngineStep, ...]
    services: dict[ServiceKey, float]


@dataclass(slots=True)
class _Route:
    """Bytes that a step has sent and received so far."""

    pull: int | None = None
    request_bytes: int = 0
    answer_bytes: int = 0
    push: int | None = None
    push_bytes: int = 0


@dataclass(slots=True)
class OperationTrace(ReportedTrace):
    """Records what a worker sends and gets between the ends of two computations, and what a server does.

    Attributes:
        steps, services: see `OperationsRecorded`.
    """

    steps: list[EngineStep] = field(default_factory=list)
    services: dict[ServiceKey, float] = field(default_factory=dict)
    _route: _Route = field(default_factory=_Route)
    _ended_s: float | None = None

    records_messages = True

    def turn(
        self,
        epoch: int,
        pull_began_s: float,
        compute_began_s: float,
        compute_ended_s: float,
        num_samples: int = 0,
    ) -> None:
        """See `Tracer`."""
        route, self._route = self._route, _Route()
        if self._ended_s is not None and route.pull is not None:
            sent = Messages(route.pull, route.request_bytes, route.answer_bytes, route.push, route.push_bytes)
            self.steps.append(
                EngineStep(
                    self._ended_s,
                    pull_began_s,
                    compute_began_s,
                    compute_ended_s,
                    num_samples,
                    {ROUTE: sent},
                )
            )
        self._ended_s = compute_ended_s

    def message(self, kind: int, request: int, num_bytes: int, *, is_sent: bool) -> None:
        """See `Tracer`. What a server sends and gets is of no use: workers record it."""
        route = self._route
        if is_sent and kind == FrameKind.PULL:
            route.pull = request
            route.request_bytes += num_bytes
        elif is_sent and kind == FrameKind.PUSH:
            route.push = request
            route.push_bytes += num_bytes
        elif not is_sent and kind == FrameKind.PULLED and request == route.pull:
            route.answer_bytes += num_bytes

    def served(self, request: int, seconds: float, *, is_pull: bool) -> None:
        """See `Tracer`."""
        key = (ROUTE, request, is_pull)
        self.services[key] = self.services.get(key, 0.0) + seconds

    def send(self, rank: LiveRank) -> None:
        rank.channel.send(SCHEDULER_RANK, OperationsRecorded(tuple(self.steps), self.services))


class ProfileRecord(JobsProgress):
    """Collects what executors have recorded, and writes the trace at the end.

    Args:
        opened: where to write, and how many steps to record.
        job: the job.
    """

    def __init__(self, opened: OpenedProfile, job: Job) -> None:
        super().__init__()
        self._opened, self._job = opened, job
        self._steps: list[EngineStep] = []
        self._services: dict[ServiceKey, float] = {}

    def add(self, recorded: OperationsRecorded) -> None:
        """Take what an executor has recorded."""
        self._steps.extend(recorded.steps)
        self._services.update(recorded.services)

    def finish(self, outcome: Outcome, exit_code: int, suspended: str) -> int:
        """Write the trace, and say what is in it."""
        if self._job.cause:
            say(f"hpcbal: {self._job.name}: {self._job.detail}")
        elif suspended:
            say(f"hpcbal: stopped ({suspended}); no trace was written. Run the same command again")
        if exit_code:
            return exit_code
        wanted, path = self._opened.num_steps, self._opened.run.operations
        limits = [machine.bandwidth for machine in self._opened.config.machines if machine.bandwidth]
        try:
            steps = self._steps[WARM_UP : WARM_UP + wanted]
            trace = trace_of_engine(steps, self._services, min(limits, default=None))
            write_atomic(path, "".join(lines_of_trace(trace)))
        except HpcbalError as error:
            say(f"hpcbal: {error}")
            return int(error.exit_code)
        self.note(f"{path}: {summary_of(trace)}")
        return 0


class ProfiledJob(JobPlacement):
    """The placement of a job that takes a few turns with one worker and one server; other ranks stand by.

    Args:
        num_turns: after which it ends.
        master: whose job it is.
        record: collects what executors have recorded.
    """

    def __init__(self, num_turns: int, master: Master, record: ProfileRecord) -> None:
        self._turns_left = num_turns
        self._master, self._record = master, record

    def hear(self, start: Start, source: int, report: Message) -> bool:
        if isinstance(report, messages.TurnDone):
            self._turns_left -= 1
            if not self._turns_left:
                self._master.stop_job(start, EndRequested("done", ""))
        return True

    def take(self, source: int, message: Message) -> None:
        if isinstance(message, OperationsRecorded):
            self._record.add(message)
        else:
            super().take(source, message)

    def stop_event(self, reason: str) -> Event:
        return EndRequested("suspended", reason)


def profile_master(rank: LiveRank, opened: OpenedProfile, loaded: LoadedJob) -> Master:
    """Return the master of a profiling run, ready to run.

    Args:
        rank: this rank.
        opened: where to write, and how many steps to record.
        loaded: the job's app and data.

    Raises:
        InputError: if the file asks for blocks that there cannot be.
    """
    config, executors = opened.config, rank.roles.executor_ranks
    job = Job(config, config.seed)
    job.loaded, job.cut = loaded, first_cut(config, loaded, 2)
    record = ProfileRecord(opened, job)
    master = Master(rank, opened.request, opened.run, {job.name: job}, record)
    master.placement = ProfiledJob(WARM_UP + opened.num_steps + 1, master, record)
    record.note(f"1 worker, 1 server: {opened.num_steps} steps after {WARM_UP} to warm up")
    master.start(job, executors, first_owners(config, job.cut, executors[:2], None))
    return master


def summary_of(trace: Trace) -> str:
    """One line for users."""
    step_s = float(trace.durations_s[:, trace.positions(Resource.WORKER)].sum(axis=1).mean())
    moved = trace.num_bytes(Resource.DOWNLINK) + trace.num_bytes(Resource.UPLINK)
    return (
        f"{trace.num_steps} steps of {trace.samples_per_step} samples, {len(trace.operations)} operations; "
        f"a step computes {step_s:.3g} s and moves {moved / 1e6:.3g} MB"
    )

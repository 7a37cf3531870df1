"""`hpcbal profile --operations`: take a few turns with one worker and one server, and write their trace."""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.cluster.walltime import WalltimeLimit
from hpcbal.comm.channel import Message
from hpcbal.comm.collectives import all_or_none, patient_broadcast
from hpcbal.config import ParamServerConfig, add_import_roots, resolved_yaml
from hpcbal.errors import HpcbalError
from hpcbal.exit_codes import CODE_OF_OUTCOME
from hpcbal.forecast.engine_trace import EngineStep, ServiceKey, trace_of_engine
from hpcbal.forecast.trace import Resource, Trace
from hpcbal.forecast.trace_file import lines_of_trace
from hpcbal.paramserver.contract import DataBlocks
from hpcbal.paramserver.engine.reactor import Patience
from hpcbal.paramserver.machine import messages
from hpcbal.paramserver.machine.events import (
    End,
    EndRequested,
    Event,
    Heard,
    Instruction,
    Send,
    Started,
)
from hpcbal.paramserver.machine.job import JobMachine, JobSpec
from hpcbal.paramserver.machine.progress import Pace
from hpcbal.printable import printable
from hpcbal.processes import say
from hpcbal.runtime.handoff.launch_dir import RunRequest, output_of
from hpcbal.runtime.handoff.start_file import StarterWatch, StartFile
from hpcbal.runtime.health.silence import StallDetector
from hpcbal.runtime.paramserver.cutting import Cut, first_cut
from hpcbal.runtime.paramserver.loading import LoadedJob, load_job
from hpcbal.runtime.paramserver.opening import JOBS, stop_rule
from hpcbal.runtime.paramserver.operations import OperationsRecorded, OperationTrace
from hpcbal.runtime.paramserver.owners import first_owners, first_roles
from hpcbal.runtime.paramserver.play import make_executor
from hpcbal.runtime.rank.context import LiveRank
from hpcbal.runtime.wire import protocol
from hpcbal.telemetry import RunDirectory, RunLock, claim_output
from hpcbal.telemetry.files.atomic_file import write_atomic
from hpcbal.telemetry.files.json_lines import duration_text

if TYPE_CHECKING:
    from mpi4py import MPI

log = logging.getLogger(__name__)

WARM_UP = 5
"""First turns, which are not recorded: pages and caches are cold."""

ENDLESS = 1 << 40
"""Epochs: a profiling run ends when it has its turns."""

LAST_RECORDS_S = 60.0
"""How long the master waits for what executors have recorded."""


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
    run = RunDirectory(output_of(request, config).root, JOBS)
    claim, lock = claim_output(run.root, resolved_yaml(config), False, JOBS)
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
        }
    )


def play_profile(
    world: MPI.Intracomm, rank: LiveRank, config: ParamServerConfig, opened: OpenedProfile | None
) -> int:
    """Play the role of this rank; collective. Returns the exit code, the same on all ranks.

    Args:
        world: communicator of all ranks.
        rank: this rank.
        config: of the profiling run.
        opened: the files, on rank 0 only.
    """
    loaded = all_or_none(world, lambda: load_job(config))
    is_master = world.rank == SCHEDULER_RANK
    cut = all_or_none(world, lambda: first_cut(config, loaded, 2) if is_master else None)
    cut = patient_broadcast(world, cut)
    frames = world.Dup()
    if is_master:
        profile, blocks = opened, cut
        assert profile is not None
        assert blocks is not None
        code = all_or_none(world, lambda: ProfileMaster(rank, loaded, blocks, profile)).run()
        frames.Free()
        return code
    trace = OperationTrace()
    executor = all_or_none(world, lambda: make_executor(frames, rank, config, loaded, cut, None, trace))
    code = executor.run()
    rank.channel.send(SCHEDULER_RANK, OperationsRecorded(tuple(trace.steps), trace.services))
    rank.channel.flush()
    executor.close()
    return code


class ProfileMaster:
    """Rank 0 of a profiling run: lets the worker take its turns, and writes the trace.

    Args:
        rank: this rank.
        loaded: the app and its data.
        cut: into blocks.
        opened: where to write, and how many steps to record.
    """

    def __init__(self, rank: LiveRank, loaded: LoadedJob, cut: Cut, opened: OpenedProfile) -> None:
        self._rank, self._opened = rank, opened
        config, executors = opened.config, rank.roles.executor_ranks
        pace = Pace(1, None, ENDLESS, ENDLESS)
        owners = first_owners(config, cut, executors[:2], None)
        self._machine = JobMachine(JobSpec(executors, pace, stop_rule(config)), *owners)
        self._num_samples = DataBlocks(loaded.num_samples, cut.data).num_samples
        self._stall = StallDetector(config.stall_timeout_s, rank.roles, opened.run.logs)
        self._walltime = WalltimeLimit.of_job(config.walltime, opened.request.started_s)
        self._start = StartFile.of_rank()
        self._starter = StarterWatch(self._start)
        self._events: deque[Event] = deque([Started()])
        self._num_turns = 0
        self._is_ending = False
        self._end: End | None = None
        self._began_s = time.monotonic()

    def run(self) -> int:
        """Work until there are enough turns; returns the exit code after sending it to all ranks."""
        self._note(f"1 worker, 1 server: {self._opened.num_steps} steps after {WARM_UP} to warm up")
        patience = Patience()
        while self._end is None:
            if self._events:
                self._handle(self._events.popleft())
                patience.reset()
            elif (found := self._rank.channel.receive()) is not None:
                self._take(*found)
                patience.reset()
                if self._stall.is_due():
                    self._look_at_clocks()
            else:
                self._look_at_clocks()
                patience.wait(time.monotonic())
        code = int(CODE_OF_OUTCOME[self._end.outcome] if self._end.exit_code is None else self._end.exit_code)
        self._rank.channel.send_to_all(self._machine.spec.executors, messages.Finish(code))
        self._rank.channel.flush()
        steps, services = self._collect()
        if self._end.cause:
            say(f"hpcbal: {self._opened.config.name}: {self._end.detail}")
        elif self._end.outcome == "suspended":
            say(f"hpcbal: stopped ({self._end.detail}); no trace was written. Run the same command again")
        if code:
            return code
        return self._write(steps, services)

    def _write(self, steps: list[EngineStep], services: dict[ServiceKey, float]) -> int:
        """Write the trace, and say what is in it."""
        wanted = self._opened.num_steps
        path = self._opened.run.operations
        try:
            trace = trace_of_engine(steps[WARM_UP : WARM_UP + wanted], services, self._bandwidth())
            write_atomic(path, "".join(lines_of_trace(trace)))
        except HpcbalError as error:  # the executors have left: nobody else can report it
            say(f"hpcbal: {error}")
            return int(error.exit_code)
        self._note(f"{path}: {summary_of(trace)}")
        return 0

    def _bandwidth(self) -> float | None:
        """Of a transfer between emulated machines; None if no link is emulated."""
        limits = [machine.bandwidth for machine in self._opened.config.machines if machine.bandwidth]
        return min(limits, default=None)

    def _handle(self, event: Event) -> None:
        for instruction in self._machine.handle(event):
            self._perform(instruction)

    def _perform(self, instruction: Instruction) -> None:
        match instruction:
            case Send(order, to):
                self._rank.channel.send_to_all(to, order)
            case End():
                self._end = instruction

    def _take(self, source: int, message: Message) -> None:
        self._stall.heard_of(source, message)
        match message:
            case protocol.StopRequest(reason):
                self._request_end("suspended", reason)
            case messages.TurnDone():
                self._num_turns += 1
                self._events.append(Heard(source, message))
                if self._num_turns > WARM_UP + self._opened.num_steps:
                    self._request_end("done", "")
            case (
                messages.Ready()
                | messages.Initialised()
                | messages.Paused()
                | messages.Failed()
                | messages.ServerReport()
            ):
                self._events.append(Heard(source, message))
            case _:
                pass

    def _look_at_clocks(self) -> None:
        reason = self._rank.stop.take() or self._walltime.reached() or self._starter.lost()
        if reason is not None:
            self._request_end("suspended", reason)
        self._stall.check()

    def _request_end(self, outcome: str, detail: str) -> None:
        if not self._is_ending and not self._rank.is_ending():
            self._is_ending = True
            self._events.append(EndRequested("done" if outcome == "done" else "suspended", detail))
            self._start.hint(is_stopping=True)

    def _collect(self) -> tuple[list[EngineStep], dict[ServiceKey, float]]:
        """What the executors have recorded, after `Finish`."""
        steps: list[EngineStep] = []
        services: dict[ServiceKey, float] = {}
        waiting = set(self._machine.spec.executors)
        until_s = time.monotonic() + LAST_RECORDS_S
        patience = Patience()
        while waiting and (now_s := time.monotonic()) < until_s:
            found = self._rank.channel.receive()
            if found is None:
                patience.wait(now_s)
                continue
            patience.reset()
            source, message = found
            if isinstance(message, OperationsRecorded):
                waiting.discard(source)
                steps.extend(message.steps)
                services.update(message.services)
        return steps, services

    def _note(self, text: str) -> None:
        moment = duration_text(time.monotonic() - self._began_s)
        print(printable(f"{moment:>8}  {text}"), file=sys.stdout, flush=True)


def summary_of(trace: Trace) -> str:
    """One line for users."""
    step_s = float(trace.durations_s[:, trace.positions(Resource.WORKER)].sum(axis=1).mean())
    moved = trace.num_bytes(Resource.DOWNLINK) + trace.num_bytes(Resource.UPLINK)
    return (
        f"{trace.num_steps} steps of {trace.samples_per_step} samples, {len(trace.operations)} operations; "
        f"a step computes {step_s:.3g} s and moves {moved / 1e6:.3g} MB"
    )

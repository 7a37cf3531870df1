"""Rank 0 of many parameter-server jobs: starts, stops and feeds them as the scheduler decides."""

from __future__ import annotations

import logging
import time
from bisect import insort
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace

from hpcbal.cluster.walltime import WalltimeLimit
from hpcbal.comm.channel import Message
from hpcbal.config import JobsConfig
from hpcbal.errors import HpcbalError, UserCodeError
from hpcbal.exit_codes import code_of_end
from hpcbal.paramserver.engine.reactor import Patience
from hpcbal.paramserver.machine import messages
from hpcbal.paramserver.machine.events import (
    ComputeMetrics,
    End,
    EpochEnded,
    Event,
    Heard,
    Instruction,
    ManifestWritten,
    Reconfigured,
    SaveRequested,
    Send,
    Started,
    StopRequested,
    WriteManifest,
)
from hpcbal.paramserver.sharing import scheduler
from hpcbal.paramserver.sharing.messages import AskForNetwork, NetworkUsed, UseNetwork
from hpcbal.paramserver.sharing.scheduler import Scheduler
from hpcbal.paramserver.sharing.synchroniser import Grant, NetworkSynchroniser
from hpcbal.policies.grouping import JobMemory
from hpcbal.runtime.handoff.start_file import StarterWatch, StartFile
from hpcbal.runtime.handoff.submissions import SubmissionWatch, append_import_roots
from hpcbal.runtime.health.silence import StallDetector
from hpcbal.runtime.paramserver.checkpoint import DATA, PARAMETERS, SavedJob, write_manifest
from hpcbal.runtime.paramserver.cutting import Cut, check_saved, first_cut
from hpcbal.runtime.paramserver.loading import LoadedJob, load_job
from hpcbal.runtime.paramserver.measuring import measure
from hpcbal.runtime.rank.context import LiveRank
from hpcbal.runtime.sharing.decisions import Decision, Decisions
from hpcbal.runtime.sharing.loader import Loader
from hpcbal.runtime.sharing.needs import Needs, needs_of
from hpcbal.runtime.sharing.opening import OpenedJobs
from hpcbal.runtime.sharing.paradigms import check_fits
from hpcbal.runtime.sharing.protocol import Forget, ForJob, HostJob, Leave, Left, MachineLoad
from hpcbal.runtime.sharing.record import JobsRecord
from hpcbal.runtime.sharing.running_job import RunningJob, look_for_disturbance, next_start, start_of
from hpcbal.runtime.wire import protocol
from hpcbal.telemetry.ledger import JobFailedLine

log = logging.getLogger(__name__)

LOOK_INTERVAL_S = 1.0
"""Between looks for jobs that have been submitted."""


class JobsMaster:
    """Performs what the `Scheduler` and the `JobMachine` of each job decide.

    Args:
        rank: this rank.
        config: the configuration.
        opened: the run's files.
        jobs: places jobs on machines.
        record: writes and prints what happens.
    """

    def __init__(
        self, rank: LiveRank, config: JobsConfig, opened: OpenedJobs, jobs: Scheduler, record: JobsRecord
    ) -> None:
        self._rank, self._config, self._opened = rank, config, opened
        self._decisions, self._record = Decisions(jobs), record
        self._configs = {job.name: job for job in config.jobs}
        self._submissions = SubmissionWatch(opened.run, self._configs)
        self._look_due_s = 0.0
        self._import_roots: tuple[str, ...] = ()
        self._saved: dict[str, SavedJob] = dict(opened.saved)
        self._loaded: dict[str, LoadedJob] = {}
        self._cuts: dict[str, Cut] = {}
        self._needs: dict[str, Needs] = {}
        self._running: dict[str, RunningJob] = {}
        self._by_start: dict[int, RunningJob] = {}
        self._last_start = 0
        self._failed = sum(isinstance(line, JobFailedLine) for line in opened.over.values())
        self._expected = sorted(
            (job.arrives_s, index, job.name)
            for index, job in enumerate(config.jobs)
            if job.name not in opened.over
        )
        self._num_left = len(self._expected)
        self._loader = Loader(self._open, record.note)
        self._network = NetworkSynchroniser()
        self._events: deque[tuple[RunningJob, Event]] = deque()
        self._stall = StallDetector(config.stall_timeout_s, rank.roles, opened.run.logs)
        self._walltime = WalltimeLimit.of_job(config.walltime, opened.request.started_s)
        self._start = StartFile.of_rank()
        self._starter = StarterWatch(self._start)
        self._began_s = time.monotonic()
        self._stop_reason: str | None = None

    def run(self) -> int:
        """Work until all jobs are over, or the run is to stop; returns the exit code."""
        patience = Patience()
        while (self._num_left or self._look_for_submissions()) and not self._has_stopped():
            if self._events:
                self._handle(*self._events.popleft())
                patience.reset()
            elif (decision := self._decisions.take()) is not None:
                self._follow(decision)
                patience.reset()
            elif (found := self._rank.channel.receive()) is not None:
                self._take(*found)
                patience.reset()
                if self._stall.is_due():
                    self._look_at_clocks()
            else:
                self._look_at_clocks()
                patience.wait(time.monotonic())
        self._decisions.close()
        outcome = "suspended" if self._num_left else "failed" if self._failed else "done"
        code = code_of_end(outcome)
        self._record.finish(outcome, code, self._stop_reason or "" if self._num_left else "")
        self._rank.channel.send_to_all(self._rank.roles.executor_ranks, Leave(code))
        self._rank.channel.flush()
        return code

    def _has_stopped(self) -> bool:
        return self._stop_reason is not None and not self._running

    # ---- messages and clocks -------------------------------------------------------------------

    def _take(self, source: int, message: Message) -> None:
        self._stall.heard_of(source, message)
        match message:
            case protocol.Heartbeat() | protocol.TimelinePart():
                pass
            case protocol.StopRequest(reason):
                self._stop(reason)
            case MachineLoad():
                self._record.note_load(source, message)
                for spilled in message.spilled:
                    if (job := self._by_start.get(spilled.start)) is not None:
                        job.note_spilled(source, spilled)
            case Left(start):
                self._left(self._by_start[start], source)
            case ForJob(start, report):
                self._hear(self._by_start[start], source, report)
            case _:
                raise TypeError(f"the scheduler got {message!r} from rank {source}")

    def _hear(self, job: RunningJob, source: int, report: Message) -> None:
        match report:
            case messages.ServerReport():
                return
            case AskForNetwork(step):
                self._grant(self._network.ask(job.name, source, step))
                return
            case NetworkUsed():
                goes_on = job.end is None and job.machine.is_amid_step
                self._grant(self._network.used(job.name, source, time.monotonic(), goes_on=goes_on))
                return
            case messages.TurnDone(step=step, samples=0):
                self._grant(self._network.idle(job.name, source, step))
            case messages.Failed():
                self._grant(self._network.let_go(job.name))
        if isinstance(report, messages.TurnDone):
            look_for_disturbance(job, self._running.values())
            if job.note_turn(source, report):
                self._measured(job)
        self._events.append((job, Heard(source, report)))  # type: ignore[arg-type]

    def _grant(self, grants: Iterable[Grant]) -> None:
        """Let workers begin that have waited for the network."""
        for name, workers in grants:
            self._rank.channel.send_to_all(workers, ForJob(self._running[name].start, UseNetwork()))

    def _measured(self, job: RunningJob) -> None:
        """Report to the scheduler what a job needs: once it is measured, and after each further iteration."""
        if job.meter.suffices(self._config.schedule.profile_iterations) and job.end is None:
            load = job.load()
            if load is not None:
                self._schedule(scheduler.Profiled(job.name, load))

    def _look_at_clocks(self) -> None:
        now_s = time.monotonic()
        self._grant(self._network.release(now_s))
        reason = self._rank.stop.take() or self._walltime.reached() or self._starter.lost()
        if reason is not None:
            self._stop(reason)
        self._stall.check()
        if now_s >= self._look_due_s:
            self._look_for_submissions()
        self._look_at_arrivals(now_s)
        interval_s = self._config.checkpoint.interval_s
        for job in self._running.values():
            is_due = 0 < interval_s <= now_s - job.saved_s
            if is_due and not job.is_saving and job.machine.phase == "running":
                job.is_saving = True
                self._events.append((job, SaveRequested()))
        self._record.heartbeat(self._running)

    def _look_for_submissions(self) -> bool:
        """Let jobs join the run that have been submitted; whether there are any."""
        if self._stop_reason is not None:
            return False  # the next start finds them
        self._look_due_s = time.monotonic() + LOOK_INTERVAL_S
        jobs, roots, problems = self._submissions.look()
        for problem in problems:
            self._record.note(problem)
        append_import_roots(roots)
        self._import_roots = tuple(dict.fromkeys((*self._import_roots, *roots)))
        for job in jobs:
            self._configs[job.name] = job
            self._record.note_submitted(job)
            insort(self._expected, (job.arrives_s, len(self._configs), job.name))
        self._num_left += len(jobs)
        return bool(jobs)

    def _look_at_arrivals(self, now_s: float) -> None:
        """Load what has arrived, and let the scheduler place what is loaded."""
        if self._stop_reason is not None:
            return
        while self._expected and self._expected[0][0] <= now_s - self._began_s:
            name = self._expected.pop(0)[2]
            self._record.note_arrived(name)
            self._loader.add(name)
        arrived: dict[str, JobMemory] = {}
        for name, future in self._loader.take().items():
            try:
                self._loaded[name], self._cuts[name], needs = future.result()
                check_fits(self._config, name, needs.memory, len(self._rank.roles.executor_ranks))
                self._needs[name] = needs
                arrived[name] = needs.memory
            except HpcbalError as error:
                cause = "app" if isinstance(error, UserCodeError) else "error"
                self._over(name, End("failed", cause, str(error)))
        if arrived:
            self._schedule(scheduler.Arrived(tuple(arrived), arrived))

    def _open(self, name: str) -> tuple[LoadedJob, Cut, Needs]:
        """Open a job that has arrived; in a thread of the loader."""
        loaded = load_job(self._configs[name])
        cut = self._cut(name, loaded)
        return loaded, cut, needs_of(loaded, self._configs[name], cut, self._seed_of(name))

    def _cut(self, name: str, loaded: LoadedJob) -> Cut:
        """How a job is cut: as its checkpoint says, or by its file.

        Raises:
            InputError: if the file asks for blocks that there cannot be.
            OutputError: if the checkpoint is of other data.
        """
        saved = self._saved.get(name)
        if saved is None:
            return first_cut(self._configs[name], loaded, len(self._rank.roles.executor_ranks))
        check_saved(saved, loaded.fingerprint(self._seed_of(name)), self._opened.run.job(name))
        return Cut.of_saved(saved)

    def _seed_of(self, name: str) -> int:
        return self._config.seed_of(self._configs[name])

    def _stop(self, reason: str) -> None:
        """Stop cleanly, once: a launcher passes a signal on to every rank, and each reports it."""
        if self._stop_reason is None and not self._rank.is_ending():
            self._stop_reason = reason
            self._start.hint(is_stopping=True)
            for job in self._running.values():
                self._stop_job(job, reason)

    # ---- the scheduler -------------------------------------------------------------------------

    def _schedule(self, event: scheduler.Event) -> None:
        if self._stop_reason is None:
            self._decisions.ask(event)

    def _follow(self, decision: Decision) -> None:
        """Do what the scheduler has decided."""
        self._record.note_decision(decision.seconds)
        if self._stop_reason is not None:
            return
        for instruction in decision.instructions:
            match instruction:
                case scheduler.Grouped():
                    self._record.note_grouped(instruction, decision.loads)
                case scheduler.StartJob(name, machines):
                    self._start_job(name, machines)
                case scheduler.StopJob(name):
                    if name in self._running:  # it may have ended meanwhile
                        self._stop_job(self._running[name], "moves to other machines")

    def _start_job(self, name: str, machines: tuple[int, ...]) -> None:
        config, saved, cut = self._configs[name], self._saved.get(name), self._cuts[name]
        self._last_start = next_start(self._last_start, self._by_start)
        job = start_of(self._last_start, self._config, config, self._loaded[name], cut, saved, machines)
        needs = self._needs[name]
        job.row_growth = needs.row_growth
        self._running[name] = self._by_start[job.start] = job
        self._network.add(name, job.workers, machines)
        order = HostJob(job.start, config, self._import_roots, cut, saved, needs.memory, len(machines))
        self._rank.channel.send_to_all(machines, order)
        self._record.note_placed(job)
        self._events.append((job, Started()))

    def _stop_job(self, job: RunningJob, reason: str) -> None:
        if job.end is None:
            job.asked_to_stop_s = time.monotonic()
            self._events.append((job, StopRequested(reason)))

    # ---- one job -------------------------------------------------------------------------------

    def _handle(self, job: RunningJob, event: Event) -> None:
        if job.end is not None:
            return
        look_for_disturbance(job, self._running.values())
        for instruction in job.machine.handle(event):
            log.debug("%s: %r", job.name, instruction)
            self._perform(job, instruction)
        job.note_phase()
        look_for_disturbance(job, self._running.values())

    def _perform(self, job: RunningJob, instruction: Instruction) -> None:
        match instruction:
            case Send(order, to):
                if isinstance(order, messages.Pause):
                    job.asked_to_save_s = time.monotonic()
                self._rank.channel.send_to_all(to, ForJob(job.start, order))
            case ComputeMetrics():
                self._events.append((job, self._measure(job, instruction)))
            case EpochEnded():
                self._record.note_epoch(job, instruction)
                if self._config.checkpoint.interval_s == 0 and not job.is_saving:
                    job.is_saving = True
                    self._events.append((job, SaveRequested()))
            case WriteManifest():
                self._write_manifest(job, instruction)
            case End():
                if instruction.exit_code is not None:
                    # Other jobs go on, so this one has failed, whatever was in its way.
                    instruction = replace(instruction, outcome="failed", exit_code=None)
                job.end = instruction
                self._grant(self._network.remove(job.name))
                finish = ForJob(job.start, messages.Finish(0))
                self._rank.channel.send_to_all(job.machines, finish)
            case Reconfigured():
                raise TypeError(f"{instruction!r} in a job that shares machines")

    def _measure(self, job: RunningJob, asked: ComputeMetrics) -> Event:
        now_s = time.monotonic()
        seconds, job.measured_s = now_s - job.measured_s, now_s
        return measure(job.loaded.app, asked, seconds)

    def _write_manifest(self, job: RunningJob, asked: WriteManifest) -> None:
        holder: Mapping[str, tuple[int, ...]] = {PARAMETERS: asked.parameter_owner, DATA: asked.data_owner}
        fingerprint = job.loaded.fingerprint(self._seed_of(job.name))
        saved = SavedJob(asked.number, fingerprint, job.cut.plain(), asked.history, holder)
        write_manifest(self._opened.run.job(job.name), saved)
        self._saved[job.name] = saved
        self._record.note_saved(job, asked)
        job.saved_s, job.is_saving = time.monotonic(), False
        job.saving_s = job.saved_s - job.asked_to_save_s
        self._events.append((job, ManifestWritten(asked.number)))

    def _left(self, job: RunningJob, source: int) -> None:
        """An executor of a job has left its machine; when all have, the job is at rest or over."""
        job.on_machines.discard(source)
        if job.on_machines:
            return
        assert job.end is not None
        del self._running[job.name], self._by_start[job.start]
        self._record.note_left(job, job.end)
        if job.end.outcome == "suspended":
            self._schedule(scheduler.Rested(job.name))
            return
        self._count_over(job.name, job.end)
        self._schedule(scheduler.Ended(job.name))

    def _over(self, name: str, end: End) -> None:
        """A job has failed before it could start."""
        self._record.note_over(name, end)
        self._count_over(name, end)

    def _count_over(self, name: str, end: End) -> None:
        self._num_left -= 1
        self._failed += end.outcome == "failed"
        self._loaded.pop(name, None)
        self._rank.channel.send_to_all(self._rank.roles.executor_ranks, Forget(name))

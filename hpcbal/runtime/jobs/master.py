"""Rank 0 of a run of jobs: feeds their machines with what executors report, and performs what they decide."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.cluster.walltime import WalltimeLimit
from hpcbal.comm.channel import Message
from hpcbal.errors import ExitCode, UserCodeError, code_of_end
from hpcbal.paramserver.api.app import checked_metrics
from hpcbal.paramserver.api.checks import calling
from hpcbal.paramserver.api.update import AppError
from hpcbal.paramserver.engine.rank_resources import in_thread
from hpcbal.paramserver.engine.reactor import Patience
from hpcbal.paramserver.master import messages
from hpcbal.paramserver.master.events import (
    ComputeMetrics,
    End,
    EpochEnded,
    Event,
    ExecutorsReady,
    Heard,
    Instruction,
    ManifestWritten,
    MetricsComputed,
    Reconfigured,
    SaveRequested,
    Send,
    StopRequested,
    WriteManifest,
)
from hpcbal.policies.grouping.memory import JobMemory
from hpcbal.runtime.handoff.launch_dir import RunRequest
from hpcbal.runtime.handoff.start_file import StarterWatch, StartFile
from hpcbal.runtime.health.silence import HeldUpError
from hpcbal.runtime.jobs.background import HangWatch, stacks_of
from hpcbal.runtime.jobs.checkpoint import DATA, PARAMETERS, SavedJob, write_manifest
from hpcbal.runtime.jobs.job import Job, Owners, Start, next_start
from hpcbal.runtime.jobs.messages import EndRun, Forget, ForJob, HostJob, Left
from hpcbal.runtime.jobs.record import JobsProgress
from hpcbal.runtime.rank.context import LiveRank
from hpcbal.runtime.wire import protocol
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.ledger.run import Outcome

log = logging.getLogger(__name__)

METRICS_THREAD = "metrics"

BUSY_S = 0.5
"""A longer turn of the master's loop is counted as its own time."""


class JobPlacement:
    """Decides which jobs are on which ranks, and how they get on with each other there."""

    @property
    def expects_more(self) -> bool:
        """Whether a job that is on no ranks is to start."""
        return False

    def hear(self, start: Start, source: int, report: Message) -> bool:
        """Take what an executor of a job reports; returns whether the job's machine is to hear it too."""
        return True

    def take(self, source: int, message: Message) -> None:
        """Take what a rank reports beside the reports of jobs."""
        raise TypeError(f"the scheduler got {message!r} from rank {source}")

    def follow(self) -> bool:
        """Do what was decided in the background; returns whether there was anything."""
        return False

    def look(self, now_s: float) -> None:
        """Look at what no message tells; called often."""

    def event_comes(self, start: Start) -> None:
        """Note that the machine of a job handles an event; called before and after."""

    def performed(self, start: Start, instruction: Instruction) -> None:
        """Note what the machine of a job has decided, after it is done."""

    def end_of(self, end: End) -> End:
        """Return how a job ends that its machine has ended like this."""
        return end

    def stop_event(self, reason: str) -> Event:
        """Return what ends a job's start when the run is to stop."""
        return StopRequested(reason)

    def left(self, job: Job) -> None:
        """Note that a job is on no ranks any more."""

    def end(self) -> None:
        """Forget what has not been decided: the run ends."""


class Master:
    """Performs what the machines of jobs and their placement decide.

    Args:
        rank: this rank.
        request: of this start.
        run: the run's directory.
        jobs: by name; a placement may add to them.
        record: writes and prints what happens.

    Attributes:
        jobs: see above.
        running: starts whose executors have not all left.
        stop_reason: why the run is to stop; None: it is not.
    """

    placement: JobPlacement

    def __init__(
        self,
        rank: LiveRank,
        request: RunRequest,
        run: RunDirectory,
        jobs: dict[str, Job],
        record: JobsProgress,
    ) -> None:
        self.jobs, self.running = jobs, dict[str, Start]()
        self.stop_reason: str | None = None
        self._rank, self._run, self._record = rank, run, record
        self._by_number: dict[int, Start] = {}
        self._hanging = set[int]()  # numbers of starts that have left executors which hang
        self._last_number = 0
        self._events: deque[tuple[Start, Event]] = deque()
        self._measuring: dict[int, tuple[Start, Future[Event]]] = {}  # by number of what is computed
        self._num_measured = 0
        self._slow_metrics = HangWatch(rank.config.stall_timeout_s)
        self._stall = rank.stall_detector()
        self._walltime = WalltimeLimit.of_job(rank.config.walltime, request.started_s)
        self._start = StartFile.of_rank()
        self._starter = StarterWatch(self._start)
        self._exit_code: int | None = None  # that the end of a job asks for
        self._looped_s = 0.0

    def run(self) -> int:
        """Work until all jobs are over, or the run is to stop; returns the exit code."""
        patience = Patience()  # every step waits for the master
        self._looped_s = time.monotonic()
        while self.running or (self.stop_reason is None and self.placement.expects_more):
            self._note_own_time()
            if self._events:
                self._handle(*self._events.popleft())
            elif self.placement.follow() or self._follow_metrics():
                pass
            elif (found := self._rank.channel.receive()) is not None:
                self._take(*found)
                if self._stall.is_due():
                    self._look_at_clocks()
            else:
                self._look_at_clocks()
                patience.wait(time.monotonic())
                continue
            patience.reset()
        self.placement.end()
        outcome = self._outcome()
        code = code_of_end(outcome)
        if outcome == "suspended" and self._exit_code is not None:
            code = self._exit_code
        is_left = outcome == "suspended" and self._exit_code is None
        code = self._record.finish(outcome, code, (self.stop_reason or "") if is_left else "")
        self._rank.channel.send_to_all(self._rank.roles.executor_ranks, EndRun(code))
        self._rank.channel.flush()
        return code

    def _note_own_time(self) -> None:
        """Count no time in which the master itself was busy as a silence of jobs: their messages waited."""
        now_s = time.monotonic()
        busy_s, self._looped_s = now_s - self._looped_s, now_s
        if busy_s > BUSY_S:
            for start in self.running.values():
                start.leave_out(busy_s, now_s)

    def _outcome(self) -> Outcome:
        """Return how the run ends."""
        if not all(job.is_over for job in self.jobs.values()):
            return "suspended"
        return "failed" if any(job.state == "failed" for job in self.jobs.values()) else "done"

    # ---- for the placement ---------------------------------------------------------------------

    def start(
        self, job: Job, ranks: Sequence[int], owners: Owners, roots: tuple[str, ...] = (), warm_up: int = 0
    ) -> Start:
        """Start a job on ranks, or let it go on there.

        Args:
            job: it is loaded and on no ranks.
            ranks: of its executors, ascending.
            owners: rank that owns each data block, and each parameter block.
            roots: directories with its modules beyond those of the run.
            warm_up: iterations that are not measured.
        """
        self._last_number = next_start(self._last_number, self._by_number.keys() | self._hanging)
        start = job.begin(self._last_number, ranks, owners, warm_up)
        self.running[job.name] = self._by_number[start.number] = start
        memory = JobMemory() if job.needs is None else job.needs.memory
        assert job.cut is not None
        order = HostJob(start.number, job.config, job.seed, roots, job.cut, job.saved, memory, len(ranks))
        self._rank.channel.send_to_all(start.ranks, order)
        self.post(start, ExecutorsReady())
        return start

    def stop_job(self, start: Start, event: Event) -> None:
        """End a start of a job, with a checkpoint if the event asks for one."""
        if start.end is None:
            start.ask_to_stop()
            self.post(start, event)

    def post(self, start: Start, event: Event) -> None:
        """Let the machine of a job handle an event soon."""
        self._events.append((start, event))

    def tell(self, start: Start, order: Message, to: Sequence[int]) -> None:
        """Send something to executors of a job."""
        self._rank.channel.send_to_all(to, ForJob(start.number, order))

    def over(self, job: Job, end: End) -> None:
        """Record that a job is done or has failed."""
        self._record.note_over(job, end)
        self._rank.channel.send_to_all(self._rank.roles.executor_ranks, Forget(job.name))

    # ---- messages and clocks -------------------------------------------------------------------

    def _take(self, source: int, message: Message) -> None:
        self._stall.heard_of(source, message)
        match message:
            case protocol.Heartbeat():
                pass
            case protocol.TimelinePart(slices):
                self._record.note_slices(source, slices)
            case protocol.StopRequest(reason):
                self._stop(reason)
            case Left(number, hangs):
                self._hanging |= {number} if hangs else set()
                self._left(self._by_number[number], source)
            case ForJob(number, report):
                start = self._by_number.get(number)
                if start is None:
                    return  # it hung, was given up, and goes on after all
                start.note_report(is_stopping=self.stop_reason is not None)
                if self.placement.hear(start, source, report):
                    self.post(start, Heard(source, report))  # type: ignore[arg-type]
            case _:
                self.placement.take(source, message)

    def _look_at_clocks(self) -> None:
        now_s = time.monotonic()
        reason = self._rank.stop.take() or self._walltime.reached() or self._starter.lost()
        if reason is not None:
            self._stop(reason)
        self._stall.check()
        self._check_stop()
        self._look_for_hanging_metrics(now_s)
        self.placement.look(now_s)
        interval_s = self._rank.config.checkpoint.interval_s
        for start in self.running.values():
            if 0 < interval_s <= now_s - start.saved_s:
                self._ask_to_save(start)
        self._record.heartbeat()

    def _check_stop(self) -> None:
        """End the job if nothing but silent jobs holds up a stop, perhaps because their code hangs."""
        self._note_own_time()  # this turn may have taken a message before, which took long
        if self.stop_reason is None:
            return
        held_up = {name: start.held_up_s(self.stop_reason) for name, start in self.running.items()}
        if held_up and all(held_up.values()):
            raise HeldUpError.of(", ".join(held_up), min(held_up.values()))

    def _ask_to_save(self, start: Start) -> None:
        if not start.is_saving and start.machine.phase == "running":
            start.is_saving = True
            self.post(start, SaveRequested())

    def _stop(self, reason: str) -> None:
        """Stop cleanly, once: a launcher passes a signal on to every rank, and each reports it."""
        if self.stop_reason is None and not self._rank.is_ending():
            self.stop_reason = reason
            self._start.hint(is_stopping=True)
            for start in self.running.values():
                self.stop_job(start, self.placement.stop_event(reason))

    # ---- one job -------------------------------------------------------------------------------

    def _handle(self, start: Start, event: Event) -> None:
        if start.end is not None:
            return
        log.debug("%s: %r", start.job.name, event)
        self.placement.event_comes(start)
        began_s = time.monotonic()
        instructions = start.machine.handle(event)
        self._record.note_decision(began_s, time.monotonic() - began_s)
        for instruction in instructions:
            log.debug("%s: %r", start.job.name, instruction)
            self._perform(start, instruction)
            self.placement.performed(start, instruction)
        start.note_phase()
        self.placement.event_comes(start)

    def _perform(self, start: Start, instruction: Instruction) -> None:
        match instruction:
            case Send(order, to):
                if isinstance(order, messages.Pause):
                    start.asked_to_save_s = time.monotonic()
                self.tell(start, order, to)
            case ComputeMetrics():
                self._num_measured += 1
                measured = in_thread(self._measurement(start, instruction), METRICS_THREAD)
                self._measuring[self._num_measured] = start, measured
            case EpochEnded():
                self._record.note_epoch(start.job, instruction)
                if self._rank.config.checkpoint.interval_s == 0:
                    self._ask_to_save(start)
            case WriteManifest():
                self._write_manifest(start, instruction)
            case Reconfigured():
                pass  # the placement has asked for it
            case End():
                start.end = self.placement.end_of(instruction)
                self.tell(start, messages.EndStart(0), start.ranks)

    def _measurement(self, start: Start, asked: ComputeMetrics) -> Callable[[], Event]:
        """Return what lets the app turn sums into metrics, which may fail."""
        now_s = time.monotonic()
        seconds, start.measured_s = now_s - start.measured_s, now_s
        assert start.job.loaded is not None
        app = start.job.loaded.app

        def measure() -> Event:
            try:
                with calling(app, "metrics"):
                    found = app.metrics(asked.sums)
                return MetricsComputed(asked.epoch, checked_metrics(found), seconds)
            except UserCodeError as error:
                problem = str(error)
            except AppError as error:
                problem = f"{type(app).__name__}.{error}"
            return Heard(SCHEDULER_RANK, messages.Failed("app", problem))

        return measure

    def _follow_metrics(self) -> bool:
        """Take over metrics that are there; returns whether there were any."""
        done = [number for number, (_, measured) in self._measuring.items() if measured.done()]
        for number in done:
            start, measured = self._measuring.pop(number)
            self.post(start, measured.result())
        return bool(done)

    def _look_for_hanging_metrics(self, now_s: float) -> None:
        """Let jobs fail whose metrics take too long."""
        computing = {start.job.name: number for number, (start, _) in self._measuring.items()}
        for name in self._slow_metrics.look(computing, now_s):
            start, _ = self._measuring.pop(computing[name])
            limit_s, logs = self._rank.config.stall_timeout_s, self._run.rank_log(SCHEDULER_RANK)
            log.warning("%s: metrics take more than %g s:\n%s", name, limit_s, stacks_of(METRICS_THREAD))
            problem = (
                f"no sign of life for {limit_s:g} s (stall_timeout_s) of the app's metrics; their stack is "
                f"in {logs}. If they do not hang, raise stall_timeout_s"
            )
            failed = messages.Failed("stalled", problem, int(ExitCode.STALLED))
            self.post(start, Heard(SCHEDULER_RANK, failed))

    def _write_manifest(self, start: Start, asked: WriteManifest) -> None:
        job = start.job
        assert job.loaded is not None
        assert job.cut is not None
        holder = {PARAMETERS: asked.parameter_owner, DATA: asked.data_owner}
        fingerprint = job.loaded.fingerprint(job.seed)
        saved = SavedJob(asked.number, fingerprint, job.cut.plain(), asked.history, holder)
        self._record.note_saving()
        write_manifest(self._run.job(job.name), saved)
        job.saved = saved
        self._record.note_saved(start, asked)
        start.saved_s, start.is_saving = time.monotonic(), False
        start.saving_s = start.saved_s - start.asked_to_save_s
        self.post(start, ManifestWritten(asked.number))

    def _left(self, start: Start, source: int) -> None:
        """Note that an executor of a job has left; when all have, the job is at rest or over."""
        start.on_ranks.discard(source)
        if start.on_ranks:
            return
        job, end = start.job, start.end
        assert end is not None
        del self.running[job.name], self._by_number[start.number]
        self._exit_code = end.exit_code
        self._record.note_left(start, end)
        job.leave(end)
        if job.is_over:
            self.over(job, end)
        self.placement.left(job)

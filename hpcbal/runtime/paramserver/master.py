"""Rank 0 of a parameter-server job: feeds its machine with what the executors report, and performs it."""

from __future__ import annotations

import logging
import time
from collections import deque

from hpcbal.cluster.walltime import WalltimeLimit
from hpcbal.comm.channel import Message
from hpcbal.exit_codes import CODE_OF_OUTCOME
from hpcbal.paramserver.contract import App
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
from hpcbal.paramserver.machine.job import JobMachine
from hpcbal.runtime.handoff.start_file import StarterWatch, StartFile
from hpcbal.runtime.health.silence import StallDetector
from hpcbal.runtime.paramserver.checkpoint import DATA, PARAMETERS, SavedJob, write_manifest
from hpcbal.runtime.paramserver.cutting import Cut
from hpcbal.runtime.paramserver.measuring import measure
from hpcbal.runtime.paramserver.record import JobRecord
from hpcbal.runtime.paramserver.supply import ExecutorSupply
from hpcbal.runtime.paramserver.tuning import Tuner
from hpcbal.runtime.rank.context import LiveRank
from hpcbal.runtime.wire import protocol
from hpcbal.telemetry import RunDirectory

log = logging.getLogger(__name__)

LAST_SLICES_S = 5.0
"""How long the master waits for the executors' last slices of the timeline."""


class Master:
    """Performs what a `JobMachine` decides.

    Args:
        rank: this rank.
        machine: makes the decisions.
        app: turns sums into metrics.
        record: writes and prints what happens.
        run: the run's directory.
        fingerprint, cut: of the data and the tables, for checkpoints.
        tuner: proposes reconfigurations.
        supply: says which executors the job may use.
        in_use: ranks of those that it may use at the start.
        started_s: when this start began, in seconds since the Unix epoch; the walltime counts from then.
    """

    def __init__(
        self,
        rank: LiveRank,
        machine: JobMachine,
        app: App,
        record: JobRecord,
        run: RunDirectory,
        fingerprint: str,
        cut: Cut,
        tuner: Tuner,
        supply: ExecutorSupply,
        in_use: tuple[int, ...],
        *,
        started_s: float,
    ) -> None:
        self._rank = rank
        self._machine = machine
        self._app = app
        self._record = record
        self._job = run.job(rank.config.name)
        self._fingerprint, self._cut = fingerprint, cut
        self._tuner = tuner
        self._supply = supply
        self._in_use = in_use
        self._events: deque[Event] = deque()
        self._stall = StallDetector(rank.config.stall_timeout_s, rank.roles, run.logs)
        self._walltime = WalltimeLimit.of_job(rank.config.walltime, started_s)
        self._start = StartFile.of_rank()
        self._starter = StarterWatch(self._start)
        self._is_stopping = False
        self._saved_s = self._measured_s = time.monotonic()
        self._asked_to_save = False
        self._end: End | None = None

    def run(self) -> int:
        """Work until the job ends; returns the exit code after sending it to all ranks."""
        self._handle(Started())
        patience = Patience()  # in `sync`, every step waits for the master
        while self._end is None:
            if self._events:
                self._handle(self._events.popleft())
                patience.reset()
                continue
            found = self._rank.channel.receive()
            if found is not None:
                self._take(*found)
                patience.reset()
                if not self._stall.is_due():
                    continue
            self._look_at_clocks()
            patience.wait(time.monotonic())
        code = int(CODE_OF_OUTCOME[self._end.outcome] if self._end.exit_code is None else self._end.exit_code)
        table = self._record.finish(self._machine, self._end, code)
        self._rank.channel.send_to_all(self._machine.spec.executors, messages.Finish(code))
        self._rank.channel.flush()
        self._record.show_end(table, self._end)
        self._take_last_slices()
        return code

    def _take_last_slices(self) -> None:
        """Complete the timeline: after `Finish`, every executor sends its last slices and an empty part."""
        waiting = set(self._machine.spec.executors)
        until_s = time.monotonic() + LAST_SLICES_S
        patience = Patience()
        while waiting and (now_s := time.monotonic()) < until_s:
            found = self._rank.channel.receive()
            if found is None:
                patience.wait(now_s)
                continue
            patience.reset()
            source, message = found
            if isinstance(message, protocol.TimelinePart):
                self._record.note_slices(source, message.slices)
                if not message.slices:
                    waiting.discard(source)
        self._record.close_timeline()

    def _handle(self, event: Event) -> None:
        log.debug("%r", event)
        began_s = time.monotonic()
        instructions = self._machine.handle(event)
        self._record.note_decision(began_s, time.monotonic() - began_s)
        for instruction in instructions:
            log.debug("%r", instruction)
            self._perform(instruction)

    def _perform(self, instruction: Instruction) -> None:
        match instruction:
            case Send(order, to):
                if isinstance(order, messages.Pause):
                    self._record.note_pause()
                self._rank.channel.send_to_all(to, order)
            case ComputeMetrics():
                self._events.append(self._measure(instruction))
            case EpochEnded():
                self._tuner.note_epoch(time.monotonic())
                self._record.note_epoch(instruction, self._machine.spec.pace.max_epochs)
                if self._rank.config.checkpoint.interval_s == 0:
                    self._ask_to_save()
            case WriteManifest():
                self._write_manifest(instruction)
            case Reconfigured():
                self._tuner.note_change()
                self._record.note_reconfigured(instruction, self._machine)
            case End():
                self._end = instruction

    def _measure(self, asked: ComputeMetrics) -> Event:
        now_s = time.monotonic()
        seconds, self._measured_s = now_s - self._measured_s, now_s
        return measure(self._app, asked, seconds)

    def _write_manifest(self, asked: WriteManifest) -> None:
        holder = {PARAMETERS: asked.parameter_owner, DATA: asked.data_owner}
        saved = SavedJob(asked.number, self._fingerprint, self._cut.plain(), asked.history, holder)
        write_manifest(self._job, saved)
        self._record.note_saved(asked)
        self._saved_s = time.monotonic()
        self._asked_to_save = False
        self._events.append(ManifestWritten(asked.number))

    # ---- messages and clocks -------------------------------------------------------------------

    def _take(self, source: int, message: Message) -> None:
        self._stall.heard_of(source, message)
        match message:
            case protocol.Heartbeat():
                pass
            case protocol.StopRequest(reason):
                self._request_stop(reason)
            case protocol.TimelinePart(slices):
                self._record.note_slices(source, slices)
            case messages.TurnDone():
                self._record.note_turn(source, message)
                self._tuner.note_turn(source, message, time.monotonic())
                self._events.append(Heard(source, message))
            case messages.ServerReport():
                self._tuner.note_report(source, message)
            case (
                messages.Ready()
                | messages.Initialised()
                | messages.Evaluated()
                | messages.BlocksMoved()
                | messages.Paused()
                | messages.Saved()
                | messages.Failed()
            ):
                self._events.append(Heard(source, message))
            case _:
                raise TypeError(f"the master got {message!r} from rank {source}")

    def _look_at_clocks(self) -> None:
        reason = self._rank.stop.take() or self._walltime.reached() or self._starter.lost()
        if reason is not None:
            self._request_stop(reason)
        self._stall.check()
        self._look_at_supply()
        change = self._tuner.propose()
        if change is not None:
            self._record.note_moving(change.why, len(change.moves))
            self._events.append(change)
        interval_s = self._rank.config.checkpoint.interval_s
        if 0 < interval_s <= time.monotonic() - self._saved_s:
            self._ask_to_save()
        self._record.heartbeat(self._machine)

    def _look_at_supply(self) -> None:
        """Note executors that were given or taken back, once it is known how far the job is."""
        if self._machine.phase != "running":
            return
        in_use = self._supply.in_use(self._machine.epochs)
        if problem := self._supply.take_problem():
            self._record.note(f"warning: {problem}")
        if in_use != self._in_use:
            self._in_use = in_use
            self._tuner.use(in_use)
            self._record.note_executors(in_use, self._supply.source)

    def _ask_to_save(self) -> None:
        if not self._asked_to_save and self._machine.phase == "running":
            self._asked_to_save = True
            self._events.append(SaveRequested())

    def _request_stop(self, reason: str) -> None:
        """Stop cleanly, once: a launcher passes a signal on to every rank, and each reports it."""
        if not self._is_stopping and not self._rank.is_ending():
            self._is_stopping = True
            self._events.append(StopRequested(reason))
            self._start.hint(is_stopping=True)

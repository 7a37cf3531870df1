"""The life of a parameter-server job at its master: events in, instructions out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hpcbal.errors import InputError
from hpcbal.events.event_log import EventLog, MachineError
from hpcbal.events.history import EpochRecord
from hpcbal.paramserver.master import messages
from hpcbal.paramserver.master.bounded_staleness import BoundedStaleness, Cursors, ObjectiveSums
from hpcbal.paramserver.master.events import (
    ComputeMetrics,
    End,
    EndRequested,
    EpochEnded,
    Event,
    ExecutorsReady,
    Heard,
    Instruction,
    ManifestWritten,
    MetricsComputed,
    Outcome,
    Reconfigure,
    Reconfigured,
    SaveRequested,
    Send,
    StopRequested,
    WriteManifest,
)
from hpcbal.paramserver.master.messages import Order, Report, What
from hpcbal.paramserver.master.reconfiguring import Reconfiguration
from hpcbal.paramserver.master.stopping import JobStop, why_diverged

MAX_EVENTS = 2000


class JobError(MachineError):
    """The job got an event that cannot happen in its state."""

    machine: ClassVar[str] = "parameter-server job"


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The facts about a job that the machine needs.

    Attributes:
        executors: ranks beside the master, ascending.
        pace: how workers are tied together.
        stop: when the job is over.
    """

    executors: tuple[int, ...]
    pace: BoundedStaleness
    stop: JobStop


class JobMachine:
    """Decides when turns may start, objectives are due, blocks move, checkpoints are written, and the end.

    It counts data blocks, not workers: a step is done when every data block has done it, whoever owned it. So
    blocks may change their owners at any time.

    Args:
        spec: the job.
        data_owner: rank that owns each data block at the start.
        parameter_owner: rank that owns each parameter block at the start.
        saved: number of the checkpoint from which the job goes on; None: from the beginning.
        history: the objectives so far, with a checkpoint.
    """

    def __init__(
        self,
        spec: JobSpec,
        data_owner: Sequence[int],
        parameter_owner: Sequence[int],
        saved: int | None = None,
        history: Sequence[EpochRecord] = (),
    ) -> None:
        self.spec = spec
        self._owner: dict[What, list[int]] = {"data": list(data_owner), "parameters": list(parameter_owner)}
        self._cursors = Cursors(len(data_owner))
        self._history = list(history)
        self._loaded = saved
        self._number = saved or 0
        self._ended_epochs = 0
        self._awaited: set[int] = set()  # executors whose answer to the last order to all is missing
        self._phase = "new"
        self._limit = 0
        self._evaluating: ObjectiveSums | None = None
        self._gives_up = False  # a stop waits for no objective
        self._has_given_up = False  # one that was under way; its terms or metrics may still come
        self._reconfiguration: Reconfiguration | None = None
        self._wants_save = False
        self._stop_reason: str | None = None
        self._over: str | None = None  # the stop rule that applied
        self._ending: End | None = None  # without a checkpoint
        self._log: EventLog[Event] = EventLog(MAX_EVENTS, lambda event: None)

    # ---- what others may look at ---------------------------------------------------------------

    @property
    def phase(self) -> str:
        """`new`, `loading`, `initialising`, `running`, `pausing`, `saving`, `writing`, `draining`, `ended`"""
        return self._phase

    @property
    def epochs(self) -> int:
        """Epochs that every data block has done."""
        return min(self._cursors.done // self.spec.pace.steps_per_epoch, self.spec.pace.max_epochs)

    @property
    def history(self) -> tuple[EpochRecord, ...]:
        """One record for each objective, oldest first."""
        return tuple(self._history)

    @property
    def is_reconfiguring(self) -> bool:
        return self._reconfiguration is not None

    @property
    def can_reconfigure(self) -> bool:
        return self._phase == "running" and self._reconfiguration is None and not self._must_pause()

    @property
    def is_amid_step(self) -> bool:
        """Whether workers have been allowed a step that not all of them have done."""
        return self._cursors.done < self._limit

    @property
    def is_iterating(self) -> bool:
        """Whether its workers do nothing but take turns: no start, objective or checkpoint is under way."""
        return self._phase == "running" and self._evaluating is None

    def owners(self, what: What) -> tuple[int, ...]:
        """Rank that owns each block; of one on its way the old one."""
        return tuple(self._owner[what])

    def role_of(self, executor: int) -> str:
        """Return the role of an executor by its blocks: `worker`, `server`, `both` or `standby`."""
        works, serves = executor in self._owner["data"], executor in self._owner["parameters"]
        return "both" if works and serves else "worker" if works else "server" if serves else "standby"

    # ---- events --------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event; returns what the master must do, in order.

        Raises:
            JobError: if the event cannot happen in this state.
        """
        self._log.append(event)
        if self._phase == "ended":
            return []
        try:
            return self._handle(event)
        except ValueError as error:
            raise JobError(str(error), events=self._log.events) from error

    def _handle(self, event: Event) -> list[Instruction]:
        if self._ending is not None and not isinstance(event, Heard):
            return []
        match event:
            case ExecutorsReady():
                return self._start()
            case Heard(executor, report):
                return self._hear(executor, report)
            case MetricsComputed():
                return self._measured(event)
            case Reconfigure():
                return self._reconfigure(event)
            case ManifestWritten():
                return self._saved()
            case SaveRequested():
                self._wants_save = True
                return self._pause_if_due()
            case StopRequested(reason, gives_up_objective):
                return self._stop(reason, gives_up_objective)
            case EndRequested(outcome, detail):
                return self._drain(outcome, "", detail)

    def _hear(self, executor: int, report: Report) -> list[Instruction]:
        match report:
            case messages.Paused() if self._ending is not None:
                return self._drained(executor)
            case messages.Ready() | messages.Initialised() | messages.Saved() if self._ending is not None:
                return []
            case messages.Ready(cursors):
                self._cursors.set(cursors)
                return self._ready() if self._answered("loading", executor) else []
            case messages.Initialised():
                return self._run() if self._answered("initialising", executor) else []
            case messages.TurnDone():
                for block in report.data_blocks:
                    self._cursors.advance(block, report.step)
                return self._proceed()
            case messages.Evaluated():
                return self._note_sums(report)
            case messages.BlocksMoved():
                return self._moved(report)
            case messages.Paused(cursors):
                self._cursors.set(cursors)
                return self._save() if self._answered("pausing", executor) else []
            case messages.Saved():
                return self._write_manifest() if self._answered("saving", executor) else []
            case messages.Failed(cause, detail, code):
                outcome: Outcome = "failed" if code is None else "suspended"
                return self._drain(outcome, cause, detail, executor, code)
            case messages.ServerReport():
                return []

    # ---- start ---------------------------------------------------------------------------------

    def _start(self) -> list[Instruction]:
        order = messages.Assign(self.owners("data"), self.owners("parameters"), self._loaded)
        return [self._ask_all(order, "loading")]

    def _ready(self) -> list[Instruction]:
        if self._loaded is None:
            return [self._ask_all(messages.Initialise(), "initialising")]
        return self._run()

    def _run(self) -> list[Instruction]:
        self._phase = "running"
        measured = self._history[-1].epoch if self._history else 0
        due = self.spec.pace.next_objective(measured)
        self._ended_epochs = max(measured, min(self.epochs, due - 1))
        # It may be over: more epochs were not given, or the kill came before the end was recorded.
        return self._apply_stop_rules() or self._proceed()

    # ---- steps and epochs ----------------------------------------------------------------------

    def _proceed(self) -> list[Instruction]:
        """Look at how far the job is."""
        instructions: list[Instruction] = []
        pace, measured = self.spec.pace, self._history[-1].epoch if self._history else 0
        due = pace.next_objective(measured)
        while self._ended_epochs < min(self.epochs, due - 1):  # an epoch with an objective ends with it
            self._ended_epochs += 1
            instructions.append(EpochEnded(self._ended_epochs, None))
        if self._phase != "running":
            return instructions
        if self._may_evaluate() and measured < due <= self.epochs:
            self._evaluating = ObjectiveSums(due, {what: len(owner) for what, owner in self._owner.items()})
            instructions.append(self._send_all(messages.Evaluate(due)))
        limit = pace.limit(self._cursors.done, measured)
        may_pause = self._must_pause() and self._evaluating is None
        if self._over is None and not may_pause and limit > self._limit:
            self._limit = limit
            instructions.append(self._send_all(messages.MayStart(limit)))
        return [*instructions, *self._pause_if_due()]

    def _may_evaluate(self) -> bool:
        """Whether an objective that is due may begin now.

        A pause of an `async` job comes before it: workers do not wait, so one may be due whenever one ends.
        """
        if self._over is not None or self._evaluating is not None or self._gives_up:
            return False
        return self.spec.pace.staleness is not None or not self._must_pause()

    def _note_sums(self, event: messages.Evaluated) -> list[Instruction]:
        if not event.data and not event.parameters:
            return []  # an executor that owns nothing, perhaps after the others
        if self._has_given_up:
            return []
        if self._evaluating is None:
            raise ValueError(f"got sums of epoch {event.epoch}, but nothing is evaluated")
        self._evaluating.add(event)
        return [ComputeMetrics(event.epoch, self._evaluating.total())] if self._evaluating.is_complete else []

    def _measured(self, event: MetricsComputed) -> list[Instruction]:
        if self._evaluating is None:
            return []  # given up
        record = EpochRecord(event.epoch, event.epoch - 1, dict(event.metrics), event.seconds)
        self._evaluating = None
        self._ended_epochs = event.epoch
        self._history.append(record)
        instructions: list[Instruction] = [EpochEnded(event.epoch, record)]
        diverged = why_diverged(event.metrics, event.epoch)
        if diverged is not None:
            return [*instructions, *self._drain("failed", "diverged", diverged)]
        return [*instructions, *(self._apply_stop_rules() or self._proceed())]

    def _apply_stop_rules(self) -> list[Instruction]:
        """Note whether the job is over by its objectives; drain it if the rules do not fit the app."""
        try:
            self._over = self.spec.stop.why_over(self._history)
        except InputError as error:
            return self._drain("suspended", "config", str(error), code=error.exit_code)
        return []

    # ---- reconfigurations ----------------------------------------------------------------------

    def _reconfigure(self, request: Reconfigure) -> list[Instruction]:
        if self._reconfiguration is not None:
            raise ValueError("a reconfiguration was requested while another one is under way")
        if self._phase != "running" or self._must_pause():
            return []  # the job is about to pause; whoever asked will see that nothing has moved
        self._reconfiguration = Reconfiguration(request, self._owner)
        return self._go_on_moving(self._reconfiguration)

    def _moved(self, event: messages.BlocksMoved) -> list[Instruction]:
        if self._reconfiguration is None:
            raise ValueError(f"{event.what} blocks {event.blocks} moved, but nothing is reconfigured")
        self._reconfiguration.arrived(event.what, event.blocks, event.destination)
        for block in event.blocks:
            self._owner[event.what][block] = event.destination
        changed = self._send_all(messages.OwnerChanged(event.blocks, event.destination))
        asked = [changed] if event.what == "parameters" else []  # nobody asks owners of data blocks
        return [*asked, *self._go_on_moving(self._reconfiguration), *self._pause_if_due()]

    def _go_on_moving(self, reconfiguration: Reconfiguration) -> list[Instruction]:
        """Start the moves that wait for none."""
        instructions: list[Instruction] = [
            Send(messages.MoveBlocks(move.what, move.blocks, move.destination), (move.source,))
            for move in reconfiguration.start_ready()
        ]
        if reconfiguration.is_over:
            self._reconfiguration = None
            instructions.append(Reconfigured(reconfiguration.performed))
        return instructions

    # ---- pauses, checkpoints, the end ----------------------------------------------------------

    def _must_pause(self) -> bool:
        return self._wants_save or self._stop_reason is not None or self._over is not None

    def _stop(self, reason: str, gives_up_objective: bool) -> list[Instruction]:
        if self._stop_reason is None:
            self._stop_reason = reason
        if self._phase in ("loading", "initialising", "new") and self._loaded is None:
            return self._drain("suspended", "", reason)  # nothing has been trained
        self._gives_up = self._gives_up or gives_up_objective
        if self._gives_up and self._evaluating is not None:
            self._evaluating, self._has_given_up = None, True
        return self._pause_if_due()

    def _pause_if_due(self) -> list[Instruction]:
        """Pause, but not amid an evaluation, and in `sync` not amid a step.

        Blocks that have not left stay until the job goes on; others arrive before their executors pause.
        """
        is_amid_step = self.spec.pace.staleness == 0 and self.is_amid_step
        is_due = self._phase == "running" and self._must_pause() and not (is_amid_step or self._evaluating)
        return [self._ask_all(messages.Pause(), "pausing")] if is_due else []

    def _save(self) -> list[Instruction]:
        self._number += 1
        return [self._ask_all(messages.Save(self._number), "saving")]

    def _write_manifest(self) -> list[Instruction]:
        self._phase = "writing"
        owners = self.owners("data"), self.owners("parameters")
        return [WriteManifest(self._number, self.epochs, self._cursors.done, self.history, *owners)]

    def _saved(self) -> list[Instruction]:
        self._wants_save = False
        if self._over is not None:
            return self._end("done", "", self._over)
        if self._stop_reason is not None:
            return self._end("suspended", "", self._stop_reason)
        self._phase = "running"
        return [self._send_all(messages.Continue()), *self._proceed()]

    def _drain(
        self, outcome: Outcome, cause: str, detail: str, failed: int = 0, code: int | None = None
    ) -> list[Instruction]:
        """End without a checkpoint, once no executor waits for another one.

        Args:
            outcome, cause, detail, code: of the `End`.
            failed: the executor that has failed; it serves, but takes no turns and answers no more. 0: none.
        """
        if self._ending is not None:  # another one has failed as well: the first cause counts
            return self._drained(failed) if failed in self._awaited else []
        self._ending = End(outcome, cause, detail, code)
        self._phase = "draining"
        self._awaited = set(self.spec.executors) - {failed}
        pause = Send(messages.Pause(), tuple(sorted(self._awaited)))
        return [pause] if self._awaited else [*self._drained(failed)]

    def _drained(self, executor: int) -> list[Instruction]:
        """Note that an executor waits for no other one any more."""
        self._awaited.discard(executor)
        if self._awaited or self._ending is None:
            return []
        self._phase = "ended"
        return [self._ending]

    def _end(self, outcome: Outcome, cause: str, detail: str) -> list[Instruction]:
        """End while all executors are paused, maybe amid a reconfiguration."""
        self._phase = "ended"
        under_way = self._reconfiguration
        changed = [Reconfigured(under_way.performed)] if under_way and under_way.performed.moves else []
        return [*changed, End(outcome, cause, detail)]

    # ---- orders --------------------------------------------------------------------------------

    def _send_all(self, order: Order) -> Send:
        return Send(order, self.spec.executors)

    def _ask_all(self, order: Order, phase: str) -> Send:
        """An order that every executor answers; until then the job is in `phase`."""
        self._phase = phase
        self._awaited = set(self.spec.executors)
        return self._send_all(order)

    def _answered(self, phase: str, executor: int) -> bool:
        """Note an answer; True if it was the last one."""
        if self._phase != phase or executor not in self._awaited:
            raise ValueError(f"executor {executor} answered, but the job is {self._phase}, not {phase}")
        self._awaited.discard(executor)
        return not self._awaited

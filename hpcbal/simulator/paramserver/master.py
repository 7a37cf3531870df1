"""Rank 0 of a simulated job: feeds the machine of a real job with what the executors report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from hpcbal.comm.channel import Message
from hpcbal.errors import HpcbalError
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
    Reconfigure,
    Reconfigured,
    Send,
    WriteManifest,
)
from hpcbal.paramserver.master.job import JobMachine
from hpcbal.paramserver.master.messages import Report, TurnDone
from hpcbal.simulator.paramserver.clock import NS_PER_S, Clock, Delay
from hpcbal.simulator.paramserver.record import ChangeTime, EpochTime, TurnTime


class Listener(Protocol):
    """Gets the master's messages."""

    def hear(self, message: Message) -> None:
        """A message has come."""


class Watcher(Protocol):
    """Watches turns and proposes reconfigurations, as the tuner of a real job does."""

    def note_turn(self, executor: int, turn: TurnDone, now_s: float) -> None:
        """A worker has taken a turn."""

    def note_epoch(self, now_s: float) -> None:
        """An epoch has ended."""

    def propose(self) -> Reconfigure | None:
        """A reconfiguration that pays; None if there is none."""

    def note_change(self) -> None:
        """A reconfiguration is over."""


class VirtualMaster:
    """Performs what a `JobMachine` decides.

    Args:
        clock: of the simulation.
        machine: of the job.
        control: time that a message to or from an executor takes, drawn anew for each.
        changes: reconfigurations, by the number of epochs after which they begin.
        watcher: proposes others; None: there are no others.

    Attributes:
        end: None until the job is over.
        executors: filled later.
        epochs, turns, changed: what has happened.
    """

    def __init__(
        self,
        clock: Clock,
        machine: JobMachine,
        control: Delay,
        changes: Mapping[int, Reconfigure],
        watcher: Watcher | None,
    ) -> None:
        self._clock, self._machine, self._control = clock, machine, control
        self._heard_ns: dict[tuple[str, int], int] = {}  # of each channel, when its last message comes
        self._changes, self._watcher = dict(sorted(changes.items())), watcher
        self.executors: dict[int, Listener] = {}
        self.end: End | None = None
        self.epochs: list[EpochTime] = []
        self.turns: list[TurnTime] = []
        self.changed: list[ChangeTime] = []
        self._changing_since_s = 0.0

    def start(self) -> None:
        """Begin the job."""
        self.handle(ExecutorsReady())

    def report(self, executor: int, report: Report) -> None:
        """An executor sends a report."""
        self.hear_from(executor, partial(self._take, executor, report))

    def hear_from(self, executor: int, action: Callable[[], None]) -> None:
        """Call an action when a message has come that an executor sends now."""
        self._clock.at(self._due_ns("from", executor), action)

    def order(self, executor: int, message: Message) -> None:
        """Send a message to an executor."""
        self._clock.at(self._due_ns("to", executor), partial(self.executors[executor].hear, message))

    def _due_ns(self, way: str, executor: int) -> int:
        """When a message that is sent now is heard; those of a channel keep their order."""
        heard_ns = self._clock.now_ns + round(self._control.draw_s() * NS_PER_S)
        self._heard_ns[way, executor] = max(heard_ns, self._heard_ns.get((way, executor), 0))
        return self._heard_ns[way, executor]

    def _take(self, executor: int, report: Report) -> None:
        if isinstance(report, TurnDone):
            self.note_turn(executor, report)
        self.handle(Heard(executor, report))
        change = self._due_change()
        if change is not None:
            self._changing_since_s = self._clock.now_s
            self.handle(change)

    def note_turn(self, executor: int, turn: TurnDone) -> None:
        """An executor has taken a turn, which the machine has not heard of yet."""
        self.turns.append(TurnTime(self._clock.now_s, executor, turn))
        if self._watcher is not None:
            self._watcher.note_turn(executor, turn, self._clock.now_s)

    def _due_change(self) -> Reconfigure | None:
        machine = self._machine
        if not machine.can_reconfigure:
            return None
        due = next((epoch for epoch in self._changes if epoch <= machine.epochs), None)
        if due is not None:
            return self._changes.pop(due)
        return None if self._watcher is None else self._watcher.propose()

    def handle(self, event: Event) -> None:
        """Something has happened."""
        for instruction in self._machine.handle(event):
            self.perform(instruction)

    def perform(self, instruction: Instruction) -> None:
        """Do what the machine asks for."""
        match instruction:
            case Send(order, to):
                for executor in to:
                    self.order(executor, order)
            case ComputeMetrics(epoch, sums):
                self._clock.after(0.0, partial(self.handle, MetricsComputed(epoch, dict(sums), 0.0)))
            case EpochEnded(epoch, record):
                self.epochs.append(EpochTime(epoch, self._clock.now_s, record is not None))
                if self._watcher is not None:
                    self._watcher.note_epoch(self._clock.now_s)
            case WriteManifest(number):
                self._clock.after(0.0, partial(self.handle, ManifestWritten(number)))
            case Reconfigured(request):
                self.changed.append(ChangeTime(self._changing_since_s, self._clock.now_s, request))
                if self._watcher is not None:
                    self._watcher.note_change()
            case End():
                if instruction.outcome != "done":
                    raise HpcbalError(
                        f"the simulated job ended as {instruction.outcome}: {instruction.detail}"
                    )
                self.end = instruction

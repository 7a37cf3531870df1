"""Rank 0 of a simulated job: feeds the machine of a real job with what the executors report."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class EpochTime:
    """One epoch.

    Attributes:
        epoch: counts up from 1.
        end_s: seconds since the start of the job.
        has_objective: whether the objective was computed at its end, and is part of its time.
    """

    epoch: int
    end_s: float
    has_objective: bool


@dataclass(frozen=True, slots=True)
class TurnTime:
    """One turn: when its updates were applied, whose it was, and what the worker reported."""

    end_s: float
    executor: int
    report: TurnDone


@dataclass(frozen=True, slots=True)
class ChangeTime:
    """One reconfiguration, in seconds since the start of the job."""

    start_s: float
    end_s: float
    change: Reconfigure


@dataclass(frozen=True, slots=True)
class ServingRun:
    """A simulated job.

    Attributes:
        epochs, turns, changes: in order of their ends.
        bytes_in, bytes_out: by rank, from and to other ranks, headers included.
        data_owner, parameter_owner: rank of each block at the end.
    """

    epochs: tuple[EpochTime, ...]
    turns: tuple[TurnTime, ...]
    changes: tuple[ChangeTime, ...]
    bytes_in: Mapping[int, int]
    bytes_out: Mapping[int, int]
    data_owner: tuple[int, ...]
    parameter_owner: tuple[int, ...]

    @property
    def epoch_seconds(self) -> tuple[float, ...]:
        """Seconds of each epoch, the first from the start of the job."""
        ends = [0.0, *(epoch.end_s for epoch in self.epochs)]
        return tuple(after - before for before, after in itertools.pairwise(ends))

    @property
    def steady_epoch_s(self) -> float:
        """Mean seconds of the epochs between the first and the last, which has an objective at its end.

        Raises: HpcbalError: there are fewer than three epochs.
        """
        if len(self.epochs) < 3:
            raise HpcbalError(f"steady_epoch_s: got {len(self.epochs)} epochs, allowed: 3 at least")
        return (self.epochs[-2].end_s - self.epochs[0].end_s) / (len(self.epochs) - 2)


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

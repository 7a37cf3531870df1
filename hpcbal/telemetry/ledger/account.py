"""Sum up what a run takes over all its starts, and how busy its slots are, line by line of its ledger."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from hpcbal.events.ensemble import CheckpointWritten, EpochDone, StartProfiling, groups_started
from hpcbal.events.line import Line
from hpcbal.telemetry.ledger.job_lines import (
    JobEpochLine,
    JobPlacedLine,
    JobSavedLine,
    JobSubmittedLine,
    MachinesBusyLine,
    MachinesUsedLine,
    RolesAssignedLine,
)
from hpcbal.telemetry.ledger.run import NodeFacts, PredictionLine, RunStartedLine, WholeRun

_NOTHING = WholeRun(None, None, 0.0, 0.0, 0.0, (), 0, 0.0)


class RunAccount:
    """The sums of the lines so far.

    A start that was killed ends with its last line. Slots are busy in the time of epochs without waiting for
    data, and executors and machines while they compute; what a kill has lost counts too.

    Attributes:
        nodes: of the last start.
    """

    def __init__(self) -> None:
        self.nodes: tuple[NodeFacts, ...] = ()
        self._known = _NOTHING
        self._started_s = self._begun_s = self._last_s = 0.0  # unix seconds, of this start
        self._worked_s: float | None = None  # since when ranks work in this start
        self._is_one = True  # whether what was predicted first holds for all starts
        self._device_s: float | None = None
        self._busy_s: dict[int, float] = defaultdict(float)
        self._of_late_s: dict[int, float] = defaultdict(float)  # by machine, in this start
        self._slots: dict[str, tuple[int, ...]] = {}

    def take(self, unix_s: float, line: Line) -> None:
        """Process the next line, written at `unix_s`."""
        if isinstance(line, RunStartedLine):
            self._begin(unix_s, line)
        self._last_s = max(self._last_s, unix_s)
        if groups := groups_started(line):
            self._slots.update({group.dnn_id: group.slots for group in groups})
        if groups or isinstance(line, StartProfiling | RolesAssignedLine | JobPlacedLine):
            self._note_work(unix_s)
        match line:
            case PredictionLine() if self._known.num_starts == 1 and self._worked_s is not None:
                predicted_s = unix_s - self._worked_s + line.remaining_s
                if math.isfinite(predicted_s):
                    self._known = replace(self._known, predicted_s=predicted_s, predicted_busy=line.busy)
            case EpochDone(dnn_id):
                slots = self._slots.get(dnn_id, ())
                self._add_busy(slots, line.busy_s)
                if line.facts.device_busy is not None and math.isfinite(line.seconds):
                    self._device_s = (self._device_s or 0.0) + line.facts.device_busy * line.seconds * len(
                        slots
                    )
            case JobEpochLine():
                for worker in line.workers:
                    self._add_busy((worker.executor - 1,), worker.compute_s)
            case MachinesBusyLine(machines, seconds, cpu):
                for machine, lasted_s, share in zip(machines, seconds, cpu, strict=True):
                    self._add_busy((machine - 1,), share * lasted_s)
                    self._of_late_s[machine] += share * lasted_s
            case MachinesUsedLine(machines, cpu):  # of the whole start
                for machine, share in zip(machines, cpu, strict=True):
                    lasted_s = unix_s - self._started_s
                    self._add_busy((machine - 1,), share * lasted_s - self._of_late_s.pop(machine, 0.0))
            case CheckpointWritten() | JobSavedLine() if math.isfinite(line.seconds):
                longest_s = max(self._known.checkpoint_s, line.seconds)
                self._known = replace(self._known, checkpoint_s=longest_s)
            case JobSubmittedLine():
                self._is_one = False

    def whole(self, unix_s: float | None = None) -> WholeRun:
        """Return the sums up to `unix_s`, or up to the last line."""
        end_s = self._last_s if unix_s is None else unix_s
        active_s = self._known.active_s + max(0.0, end_s - self._begun_s)
        by_slot = tuple(
            min(1.0, self._busy_s[slot] / active_s) if active_s > 0.0 else 0.0
            for slot in range(_num_slots(self.nodes))
        )
        slot_s = active_s * len(by_slot)
        device_busy = None if self._device_s is None or not slot_s else min(1.0, self._device_s / slot_s)
        known = self._known if self._is_one else replace(self._known, predicted_s=None, predicted_busy=None)
        return replace(
            known,
            active_s=active_s,
            busy=sum(by_slot) / len(by_slot) if by_slot else 0.0,
            busy_by_slot=tuple(round(share, 4) for share in by_slot),
            device_busy=device_busy,
        )

    def _begin(self, unix_s: float, line: RunStartedLine) -> None:
        known = self._known
        if known.num_starts:
            earlier_s = known.active_s + self._last_s - self._begun_s
            known = replace(known, active_s=earlier_s)
            self._is_one &= not line.has_changed and _num_slots(line.nodes) == _num_slots(self.nodes)
        else:
            known = replace(known, expected_startup_s=line.expected_startup_s)
        self._known = replace(known, num_starts=known.num_starts + 1)
        self.nodes = line.nodes
        self._started_s = self._last_s = unix_s
        self._begun_s = unix_s - (line.opening_s if math.isfinite(line.opening_s) else 0.0)
        self._worked_s = None
        self._slots = {}
        self._of_late_s.clear()

    def _note_work(self, unix_s: float) -> None:
        if self._worked_s is None:
            self._worked_s = unix_s
            if self._known.num_starts == 1:
                self._known = replace(self._known, startup_s=unix_s - self._begun_s)

    def _add_busy(self, slots: tuple[int, ...], seconds: float) -> None:
        if math.isfinite(seconds):
            for slot in slots:
                self._busy_s[slot] += seconds


def _num_slots(nodes: Iterable[NodeFacts]) -> int:
    return sum(node.num_slots for node in nodes)

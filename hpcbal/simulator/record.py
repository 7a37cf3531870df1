"""The record of a simulated run: slots over time, rounds, DNNs, and timed events."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hpcbal.control.paradigms import WITHOUT_ROUNDS
from hpcbal.events.ensemble import Event, RoundPlan

FloatArray = npt.NDArray[np.float64]

START, TRAIN, WAIT, SAVE, PROFILE = KINDS = ("start", "train", "wait", "save", "profile")
"""Kinds of spans. `start`: forming groups, building, loading. `wait`: blocked by the shared stream. `save`:
writing the checkpoint before a group leaves. A slot without a span is idle."""


@dataclass(frozen=True, slots=True)
class Span:
    """Slots that did one thing for one DNN from `start_s` to `end_s`.

    If a group waits for blocks several times during a pass, its own work comes first in the record and the
    waiting last, so that both have the right length.
    """

    kind: str
    dnn_id: str
    slots: tuple[int, ...]
    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round; for the independent schedule, one DNN on its slot.

    Attributes:
        plan: the plan from the state machine.
        start_s, end_s: from the order to start until all slots are free again.
        running_s: by DNN, how long it held its slots in this round.
        num_passes: passes of the DNN that trained the most.
    """

    plan: RoundPlan
    start_s: float
    end_s: float
    running_s: Mapping[str, float]
    num_passes: int

    @property
    def mean_running_s(self) -> float:
        return statistics.fmean(self.running_s.values())

    @property
    def deviation_running_s(self) -> float:
        """Standard deviation over the DNNs of the round; 0 for one DNN."""
        return statistics.pstdev(self.running_s.values())


@dataclass(frozen=True, slots=True)
class DnnRecord:
    """The record of one DNN.

    Attributes:
        dnn_id: name of the DNN.
        start_s: when it first held a slot for training.
        end_s: when it was done.
        running_s: time in rounds, without waiting between them: the running length of Table 3.
        slot_seconds: that time multiplied by the slots that it held.
    """

    dnn_id: str
    start_s: float
    end_s: float
    running_s: float
    slot_seconds: float


@dataclass(frozen=True, slots=True)
class TimedEvent:
    """An event that the state machine received, and its time."""

    time_s: float
    event: Event


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """A whole run in virtual time, starting at 0.

    Attributes:
        makespan_s: time until the last slot is free.
        outcome: the outcome in Finish.
        num_slots: slots of the cluster.
        rounds: rounds in the order in which they began.
        dnns: DNNs in the order of the config, without those that were done before.
        spans: what slots did, in the order of the spans' ends.
        events: events in order; empty unless requested.
        profiling_s: time until the first round began, if rates had to be measured.
        scheduling_s: time of all decisions together.
        lower_bound_s: no schedule of these DNNs can be faster; see `lower_bound`.
        num_events: number of events handled.
        num_epochs: epochs trained, of all DNNs.
        num_pruned: DNNs that a pruning rule has stopped.
        paradigms: of the schedules that the run had, in order.
    """

    makespan_s: float
    outcome: str
    num_slots: int
    rounds: tuple[RoundRecord, ...]
    dnns: tuple[DnnRecord, ...]
    spans: tuple[Span, ...]
    events: tuple[TimedEvent, ...]
    profiling_s: float
    scheduling_s: float
    lower_bound_s: float
    num_events: int
    num_epochs: int
    num_pruned: int
    paradigms: tuple[str, ...]
    _by_kind: dict[str, FloatArray] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def num_rounds(self) -> int:
        """Number of rounds; 0 if DNNs train without rounds."""
        return 0 if set(self.paradigms) <= set(WITHOUT_ROUNDS) else len(self.rounds)

    @property
    def busy(self) -> float:
        """Share of the slots' time in which they train, 0..1."""
        whole_s = self.makespan_s * self.num_slots
        return float(self.slot_seconds(TRAIN).sum()) / whole_s if whole_s > 0.0 else 0.0

    def slot_seconds(self, kind: str) -> FloatArray:
        """Time that each slot spent in one kind of span, shape (num_slots,)."""
        if not self._by_kind:
            self._by_kind.update({kind: np.zeros(self.num_slots) for kind in KINDS})
            for span in self.spans:
                self._by_kind[span.kind][list(span.slots)] += span.seconds
        return self._by_kind[kind]

    def idle_seconds(self) -> FloatArray:
        """Time that each slot had no DNN during the run, shape (num_slots,): [FLEET] Fig. 6."""
        used = sum((self.slot_seconds(kind) for kind in KINDS), np.zeros(self.num_slots))
        return np.maximum(0.0, self.makespan_s - used)

    def checkpointing_s(self) -> float:
        """Time in which a slot's DNN was saved or restored instead of trained, averaged over the slots.

        Source: [FLEET] Table 4, "Checkpointing Overhead"; building a DNN for its first round counts too.
        """
        return float(np.mean(self.slot_seconds(SAVE) + self.slot_seconds(START)))

    def running_lengths(self) -> tuple[float, float]:
        """Mean and standard deviation of the DNNs' running lengths, seconds ([FLEET] Table 3)."""
        lengths = [dnn.running_s for dnn in self.dnns]
        if not lengths:
            return 0.0, 0.0
        return statistics.fmean(lengths), statistics.pstdev(lengths)

"""Carry out the state machine's instructions in virtual time, and send it the resulting events."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hpcbal.control.ensemble import Ensemble
from hpcbal.control.prediction import skip_passes
from hpcbal.control.state import EnsembleState
from hpcbal.events.ensemble import (
    CheckpointWritten,
    ChooseSchedule,
    EpochDone,
    Event,
    Finish,
    GroupLeft,
    GroupPlan,
    Instruction,
    LeaveOut,
    LeaveRound,
    NextPass,
    RateMeasured,
    RoundPlan,
    ScheduleChosen,
    Started,
    StartGroup,
    StartProfiling,
    StartRound,
    StopStream,
)
from hpcbal.events.history import NOTHING_MEASURED, EpochFacts, Position
from hpcbal.events.members import DnnSpec
from hpcbal.policies.rates import RateTable
from hpcbal.simulator.balancing import Pace
from hpcbal.simulator.costs import Costs
from hpcbal.simulator.learning_curves import Curves, EvidenceOf
from hpcbal.simulator.pass_model import PassModel, ReadingGroup
from hpcbal.simulator.record import PROFILE, SAVE, START, TRAIN, WAIT, RoundRecord, Span, TimedEvent


class Remaining:
    """The least time that a run still needs, whatever the schedule: `lower_bound` of what is left.

    Args:
        specs: the DNNs.
        rates: rates of all of them.
        passes: determines the length of an epoch.
        num_slots: M, >= 1.
        max_slots_per_dnn: None: M.

    Attributes:
        whole_s: the least time of all DNNs from their beginning.
    """

    def __init__(
        self,
        specs: Sequence[DnnSpec],
        rates: RateTable,
        passes: PassModel,
        num_slots: int,
        max_slots_per_dnn: int | None,
    ) -> None:
        most = num_slots if max_slots_per_dnn is None else min(num_slots, max_slots_per_dnn)
        matrix = rates.matrix([spec.dnn_id for spec in specs], most)
        epoch_s = passes.seconds(1.0)
        work = epoch_s / (matrix / np.arange(1, most + 1)).max(axis=1)
        longest = epoch_s / matrix.max(axis=1)
        self._epoch_s: Mapping[str, tuple[float, float]] = {
            spec.dnn_id: (float(own_work), float(own_longest))
            for spec, own_work, own_longest in zip(specs, work, longest, strict=True)
        }
        self._num_slots = num_slots
        self.whole_s = self._of({spec.dnn_id: spec.stop.max_epochs for spec in specs})

    def least_s(self, state: EnsembleState) -> float:
        """Seconds that no schedule can save, between two passes."""
        dnns = state.dnns
        return self._of({d: dnns[d].spec.stop.max_epochs - dnns[d].epochs for d in state.live})

    def _of(self, epochs: Mapping[str, int]) -> float:
        work_s, longest_s = 0.0, 0.0
        for dnn_id, left in epochs.items():
            work, longest = self._epoch_s[dnn_id]
            work_s += left * work
            longest_s = max(longest_s, left * longest)
        return max(work_s / self._num_slots, longest_s)


CUT = "cut"
"""The outcome of a run that was cut off."""


@dataclass(slots=True)
class _Group:
    """A trainer group in a stream.

    Attributes:
        pass_index, offset: the pass that it trains, and its position in it.
        ready_s: when it can train (or continue).
        is_training: whether its EpochDone is scheduled.
        held_since_s: since when it only waits; the end of its own work in the last pass.
        start_s: how long it took to start, until that is reported.
    """

    plan: GroupPlan
    pass_index: int
    offset: int
    ready_s: float
    is_training: bool = False
    held_since_s: float = math.nan
    start_s: float | None = None


@dataclass(slots=True)
class _Stream:
    """Groups that read one stream of samples: the stream of a round, or of a DNN alone."""

    plan: RoundPlan
    start_s: float
    groups: dict[str, _Group] = field(default_factory=dict)
    running_s: dict[str, float] = field(default_factory=dict)
    passes: set[int] = field(default_factory=set)


class EnsembleSimulation:
    """Runs an ensemble to its end; use it once.

    Args:
        ensemble: a fresh ensemble, not started.
        specs: the DNNs, for their batch sizes and the metrics that they monitor.
        pace: speed of the trainer groups.
        passes: model of a pass.
        costs: costs of everything else.
        curves: the monitored metric of each epoch; None: it is not known, and all DNNs are alike to a pruning
            rule.
        evidence: the predictions after each epoch, for a pruning rule that needs them; None: not known.
        choose: answers ChooseSchedule; None: the schedule is given.
        in_memory: slots that hold a DNN when the run starts; None: none does.
        keep_events: whether `events` is filled.
        is_brief: whether only the end of the run is of interest: `spans` stays empty, and passes in which
            nothing is decided are skipped. Needs constant rates, no checkpoints during rounds, and DNNs that
            train to their max_epochs.
        until_s: the run is cut off when it is certain to end later.
        remaining: the least time that is left; None: not known.
        most_events: the run is also cut off after this many events; None: any number.

    Attributes:
        now_s: virtual time.
        rounds, spans, events: see `SimulatedRun`.
        num_events: events handled so far.
        profiled_until_s: end of the last profiling wave.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        specs: Mapping[str, DnnSpec],
        pace: Pace,
        passes: PassModel,
        costs: Costs,
        *,
        curves: Curves | None = None,
        evidence: EvidenceOf | None = None,
        choose: Callable[[ChooseSchedule], ScheduleChosen] | None = None,
        in_memory: Mapping[str, tuple[int, ...]] | None = None,
        keep_events: bool = False,
        is_brief: bool = False,
        until_s: float = math.inf,
        remaining: Remaining | None = None,
        most_events: int | None = None,
    ) -> None:
        self.now_s = 0.0
        self.rounds: list[RoundRecord] = []
        self.spans: list[Span] = []
        self.events: list[TimedEvent] = []
        self.num_events = 0
        self.scheduling_s = 0.0
        self.profiled_until_s = 0.0
        self._ensemble = ensemble
        self._specs = specs
        self._pace = pace
        self._passes = passes
        self._costs = costs
        self._curves = curves
        self._evidence = evidence
        self._choose = choose
        self._keep_events = keep_events
        self._is_brief = is_brief
        self._until_s = until_s
        self._remaining = remaining
        self._most_events = most_events
        self._heap: list[tuple[float, int, Event]] = []
        self._num_scheduled = 0
        self._is_hopeless = False
        self._stream_of: dict[str, _Stream] = {}
        self._profiled: dict[str, GroupPlan] = {}
        self._last_slots = dict(in_memory or {})  # where a DNN was trained last
        self._node_of_slot = ensemble.cluster.node_of_slots()
        self._num_made = 0  # epochs of streams
        self._filled_s = math.inf  # without rounds: when the caches are filled

    def run(self) -> str:
        """Run from Started to Finish.

        Returns: the outcome; `CUT` if the run was cut off.
        Raises:
            HpcbalError: raised by `Ensemble.handle`.
        """
        self._at(0.0, Started())
        while self._heap:
            self.now_s, _, event = heapq.heappop(self._heap)
            is_long = self._most_events is not None and self.num_events > self._most_events
            if is_long or self.now_s > self._until_s or self._is_hopeless:
                return CUT
            self.num_events += 1
            if self._keep_events:
                self.events.append(TimedEvent(self.now_s, event))
            if isinstance(event, EpochDone):
                self._on_epoch_done(event.dnn_id)
            elif isinstance(event, GroupLeft):
                self._on_left(event.dnn_id)
            self._perform(self._ensemble.handle(event))
        assert self._ensemble.finished, "no event is scheduled, but the ensemble is not finished"
        return self._ensemble.outcome

    def _perform(self, instructions: list[Instruction]) -> None:
        shrunk: dict[int, _Stream] = {}
        for instruction in instructions:
            _PERFORM[type(instruction)](self, instruction)
            if isinstance(instruction, LeaveRound):
                stream = self._stream_of[instruction.dnn_id]
                shrunk[id(stream)] = stream
        for stream in shrunk.values():
            self._begin_next_if_none_trains(stream)

    def _at(self, time_s: float, event: Event) -> None:
        heapq.heappush(self._heap, (time_s, self._num_scheduled, event))
        self._num_scheduled += 1

    def _span(self, kind: str, group: GroupPlan, start_s: float, end_s: float) -> None:
        if end_s > start_s and not self._is_brief:
            self.spans.append(Span(kind, group.dnn_id, group.slots, start_s, end_s))

    def _choose_schedule(self, instruction: ChooseSchedule) -> None:
        assert self._choose is not None, "a schedule must be chosen, but nobody does"
        self._at(self.now_s, self._choose(instruction))

    # ---- profiling ---------------------------------------------------------------------------

    def _profile(self, instruction: StartProfiling) -> None:
        """The groups of a wave train until all have been measured."""
        rates = [self._pace.profiled_rate(group) for group in instruction.groups]
        samples = [self._specs[group.dnn_id].batch_size for group in instruction.groups]
        longest_s = (
            max(n / rate for n, rate in zip(samples, rates, strict=True)) * self._passes.profile_batches
        )
        end_s = self.now_s + self._costs.profile_start_s + longest_s
        for group, rate in zip(instruction.groups, rates, strict=True):
            self._span(PROFILE, group, self.now_s, end_s)
            self._profiled[group.dnn_id] = group
            self.profiled_until_s = max(self.profiled_until_s, end_s)
            self._at(end_s, RateMeasured(group.dnn_id, len(group.slots), rate))
            self._at(end_s, GroupLeft(group.dnn_id))

    # ---- streams -----------------------------------------------------------------------------

    def _start_round(self, instruction: StartRound | StartGroup) -> None:
        plan = instruction.plan
        if self._remaining is not None and isinstance(instruction, StartRound):
            least_s = self._remaining.least_s(self._ensemble.state)
            self._is_hopeless = self.now_s + least_s > self._until_s
        decided_s = self._costs.scheduling_s if isinstance(instruction, StartRound) else 0.0
        self.scheduling_s += decided_s
        stream = _Stream(plan, self.now_s)
        formed_s = self.now_s + decided_s + self._costs.form_s
        for group in plan.groups:
            ready_s = formed_s + self._start_cost(plan, group)
            self._span(START, group, self.now_s, ready_s)
            start = plan.start[group.dnn_id]
            self._pace.begin_round(group)
            stream.groups[group.dnn_id] = _Group(
                group, start.pass_index, start.offset, ready_s, start_s=ready_s - self.now_s
            )
            self._stream_of[group.dnn_id] = stream
            self._last_slots[group.dnn_id] = group.slots
            if start.offset >= self._passes.num_positions:
                stream.groups[group.dnn_id].held_since_s = ready_s
        is_new = plan.num_slots == sum(len(group.slots) for group in plan.groups)
        if is_new and self._is_brief and self._num_alike(stream) > 0:
            self._train_alike(stream, plan.first_pass)
            return
        self._begin_pass(stream, plan.first_pass)
        self._begin_next_if_none_trains(stream)

    def _start_cost(self, plan: RoundPlan, group: GroupPlan) -> float:
        if set(group.slots) <= set(self._last_slots.get(group.dnn_id, ())):
            return 0.0  # its network is still in memory
        begun = plan.epochs[group.dnn_id] > 0 or plan.start[group.dnn_id].offset > 0
        return self._costs.to_start(group.dnn_id, is_new=not begun)

    def _begin_pass(self, stream: _Stream, pass_index: int) -> None:
        """All groups that are at the beginning, or inside, of this pass train it to its end."""
        begun = [
            group
            for group in stream.groups.values()
            if group.pass_index == pass_index
            and not group.is_training
            and group.offset < self._passes.num_positions
        ]
        if not begun:
            return
        is_new = pass_index not in stream.passes
        stream.passes.add(pass_index)
        for group in begun:
            group.ready_s = max(group.ready_s, self.now_s)
            self._span(WAIT, group.plan, group.held_since_s, self.now_s)
        readers = [
            ReadingGroup(group.ready_s, group.offset, self._pace.pass_rate(group.plan, group.offset))
            for group in begun
        ]
        begun_s = min(reader.start_s for reader in readers)
        ends_s = self._finish_times(stream, readers, begun_s, is_new=is_new)
        for group, reader, end_s in zip(begun, readers, ends_s, strict=True):
            own_s = self._passes.own_seconds(reader)
            self._span(TRAIN, group.plan, reader.start_s, reader.start_s + own_s)
            group.held_since_s = reader.start_s + own_s
            group.is_training = True
            end_s += self._costs.pass_s
            metrics = self._metrics(group.plan.dnn_id)
            seconds = end_s - reader.start_s
            offered = self._pace.offered_slot(group.plan)
            self._measure(stream.plan, group.plan, end_s)
            facts = self._facts(group.plan.dnn_id)
            done = EpochDone(group.plan.dnn_id, pass_index, metrics, seconds, own_s, offered, facts)
            if group.start_s is not None:
                done, group.start_s = replace(done, start_s=group.start_s), None
            self._at(end_s, done)

    def _metrics(self, dnn_id: str) -> dict[str, float]:
        """The metrics of the epoch that the DNN trains now."""
        epoch = self._ensemble.state.dnns[dnn_id].epochs + 1
        value = math.nan if self._curves is None else self._curves(dnn_id, epoch)
        return {self._specs[dnn_id].stop.monitor: value}

    def _facts(self, dnn_id: str) -> EpochFacts:
        """Return the predictions after the epoch that the DNN trains now, for a rule that compares them."""
        if self._evidence is None:
            return NOTHING_MEASURED
        epoch = self._ensemble.state.dnns[dnn_id].epochs + 1
        return replace(NOTHING_MEASURED, evidence=self._evidence(dnn_id, epoch))

    def _measure(self, plan: RoundPlan, group: GroupPlan, end_s: float) -> None:
        if group.dnn_id in plan.measures and not self._ensemble.rates.is_measured(group.dnn_id, 1):
            self._at(end_s, RateMeasured(group.dnn_id, 1, self._pace.profiled_rate(group)))

    def _next_pass(self, instruction: NextPass) -> None:
        streams: dict[int, _Stream] = {}
        for dnn_id in instruction.dnn_ids:
            stream = self._stream_of[dnn_id]
            group = stream.groups[dnn_id]
            streams[id(stream)] = stream
            group.pass_index, group.offset = instruction.pass_index, 0
            group.ready_s = self.now_s + self._costs.snapshot_s * (dnn_id in instruction.checkpoint)
        for stream in streams.values():
            if self._is_brief and stream.groups.keys() <= set(instruction.dnn_ids):
                self._train_alike(stream, instruction.pass_index)
            else:
                self._begin_pass(stream, instruction.pass_index)

    def _num_alike(self, stream: _Stream) -> int:
        """How many passes end without a decision, if all groups are at the beginning of the same pass."""
        dnns = self._ensemble.state.dnns
        starts = {(group.pass_index, group.offset) for group in stream.groups.values()}
        decides = not (self._ensemble.has_rounds or self._ensemble.is_independent)
        if decides or stream.plan.last_pass is not None or len(starts) != 1:
            return 0
        return min(dnns[name].spec.stop.max_epochs - dnns[name].epochs for name in stream.groups) - 1

    def _train_alike(self, stream: _Stream, pass_index: int) -> None:
        """Train the passes that end without a decision, at once, and then the next pass.

        The first of them may be longer, because groups get ready one after another, and so may those that
        fill the caches. The others are all alike.
        """
        groups = list(stream.groups.values())
        number = self._num_alike(stream)

        def end_of_pass(ready_s: Sequence[float], begun_s: float) -> float:
            readers = [
                ReadingGroup(ready, 0, self._pace.pass_rate(group.plan, 0))
                for group, ready in zip(groups, ready_s, strict=True)
            ]
            return max(self._finish_times(stream, readers, begun_s)) + self._costs.pass_s

        if number > 0:
            skip_passes(self._ensemble, tuple(stream.groups), number)
            ready_s = [group.ready_s for group in groups]
            end_s = end_of_pass(ready_s, min(ready_s))
            left, together = number - 1, [0.0] * len(groups)
            while left and self._makers(stream, end_s)[1]:
                end_s += end_of_pass(together, end_s)
                left -= 1
            if left:
                end_s += left * end_of_pass(together, end_s)
            for group in groups:
                group.pass_index += number
                group.ready_s = end_s
        self._begin_pass(stream, pass_index + number)

    def _finish_times(
        self, stream: _Stream, readers: Sequence[ReadingGroup], begun_s: float, *, is_new: bool = True
    ) -> list[float]:
        """When readers end a pass that begins at `begun_s`; notes that this fills the caches."""
        makers = self._makers(stream, begun_s)
        ends_s = self._passes.finish_times(readers, *makers)
        if self._ensemble.has_rounds:
            self._num_made += self._passes.num_merged * is_new
        elif makers[1]:
            self._filled_s = min(self._filled_s, max(ends_s))
        return ends_s

    def _makers(self, stream: _Stream, now_s: float) -> tuple[int, int, int]:
        """Return who makes the samples of a pass: see `PassModel.finish_times`.

        Nodes fetch samples from each other's caches, so each is made once. Without rounds, everyone fills the
        caches in the first pass.
        """
        number = stream.plan.num_preprocessors
        if self._passes.hit_rate == 0.0:
            return number, 0, number
        ensemble = self._ensemble
        if ensemble.has_rounds:
            return number, max(0, 1 - self._num_made), number
        if self._filled_s <= now_s:
            return number, 0, number
        num_trainers = sum(len(group.slots) for group in ensemble.state.groups.values())
        return number, 1, num_trainers + ensemble.settings.max_preprocessors

    def _begin_next_if_none_trains(self, stream: _Stream) -> None:
        """Groups that started ahead (after a crash) train once the groups behind have dropped out."""
        if any(group.is_training for group in stream.groups.values()):
            return
        ahead = [g.pass_index for g in stream.groups.values() if g.offset < self._passes.num_positions]
        if ahead:
            self._begin_pass(stream, min(ahead))

    def _leave(self, instruction: LeaveRound) -> None:
        dnn_id = instruction.dnn_id
        group = self._stream_of[dnn_id].groups[dnn_id]
        end_s = self.now_s + self._costs.checkpoint_s
        self._span(WAIT, group.plan, group.held_since_s, self.now_s)
        self._span(SAVE, group.plan, self.now_s, end_s)
        epochs = self._ensemble.state.dnns[dnn_id].epochs
        position = Position(group.pass_index, self._passes.num_positions)
        self._at(end_s, CheckpointWritten(dnn_id, epochs, position, self._costs.checkpoint_s))
        self._at(end_s, GroupLeft(dnn_id))

    def _on_epoch_done(self, dnn_id: str) -> None:
        group = self._stream_of[dnn_id].groups[dnn_id]
        group.is_training, group.offset = False, self._passes.num_positions

    def _on_left(self, dnn_id: str) -> None:
        """The slots of a DNN are free: its group leaves the stream, and the last group ends the round."""
        if self._profiled.pop(dnn_id, None) is not None:
            return
        stream = self._stream_of.pop(dnn_id)
        del stream.groups[dnn_id]
        stream.running_s[dnn_id] = self.now_s - stream.start_s
        if stream.groups:
            return
        record = RoundRecord(stream.plan, stream.start_s, self.now_s, stream.running_s, len(stream.passes))
        self.rounds.append(record)

    def _nothing(self, instruction: LeaveOut | StopStream | Finish) -> None:
        """Nothing to do: the last group to leave has ended the stream, and no event is left after Finish."""


_PERFORM: dict[type[Instruction], Callable[[EnsembleSimulation, Any], None]] = {
    ChooseSchedule: EnsembleSimulation._choose_schedule,
    StartProfiling: EnsembleSimulation._profile,
    StartRound: EnsembleSimulation._start_round,
    StartGroup: EnsembleSimulation._start_round,
    NextPass: EnsembleSimulation._next_pass,
    LeaveOut: EnsembleSimulation._nothing,
    LeaveRound: EnsembleSimulation._leave,
    StopStream: EnsembleSimulation._nothing,
    Finish: EnsembleSimulation._nothing,
}

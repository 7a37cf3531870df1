"""Replay a ledger line by line: which DNN held which slot when, and with which results."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpcbal.events.ensemble import (
    CheckpointWritten,
    DnnFailed,
    EpochDone,
    GroupLeft,
    GroupPlan,
    LeaveOut,
    LeaveRound,
    PreprocessingMeasured,
    RoundPlan,
    Schedule,
    ScheduleChosen,
    StartGroup,
    StartProfiling,
    StartRound,
    StopStream,
)
from hpcbal.events.history import finite_metrics
from hpcbal.events.line import Line
from hpcbal.kinds import ENSEMBLE, KINDS, Kind
from hpcbal.report.model import (
    EpochPoint,
    GroupWait,
    LeftOut,
    MachineBusy,
    ModelWarning,
    PredictedDuration,
    RateComparison,
    RoundReport,
    SharePoint,
    SlotSpan,
    SlotUse,
    SpanKind,
    WorkReport,
)
from hpcbal.report.reading.replay_parts import Epoch, Hold, share_point, waits_of, works_of
from hpcbal.telemetry.ledger.account import RunAccount
from hpcbal.telemetry.ledger.codec import Entry
from hpcbal.telemetry.ledger.dnn_lines import (
    BadSampleLine,
    BestKeptLine,
    DnnDoneLine,
    DnnPrunedLine,
    DnnRetriedLine,
    DnnStoppedLine,
    ModelWarningLine,
)
from hpcbal.telemetry.ledger.job_lines import (
    JobDoneLine,
    JobEpochLine,
    JobFailedLine,
    JobSavedLine,
    ReconfiguredLine,
    RolesAssignedLine,
)
from hpcbal.telemetry.ledger.run import PredictionLine, RunFinishedLine, RunStartedLine, WholeRun

_LEAST_TRAINED_S = 1e-6
"""A time shorter than this cannot be measured, so it gives no rate."""


@dataclass
class Round:
    """One round; `end_s` is None until it ends."""

    index: int
    start_s: float
    num_dnns: int
    num_preprocessors: int
    end_s: float | None = None


class Replay:
    """The facts from the lines read so far.

    Attributes:
        now_s: seconds of running up to the last line.
        until_s: at least so long is the axis; what has not ended lasts until its end.
        start_s: position of each start on that axis.
        slot_names: slot names of the largest cluster so far.
        done, pruned, stopped, failed: DNNs by name; failed DNNs with (cause, detail).
        left_out: slots that DNNs leave out.
        warnings: of the models, as keys in order; several starts may repeat them.
        schedule: the schedule that was chosen last; None if none was chosen.
        shares: shares of the slots, by DNN.
        best: what was kept as best weights, by DNN, the newest last.
        busy: how busy the workers of a job on parameter servers were in each epoch.
        last_saved: the epoch of the checkpoint, by DNN; None if it holds no weights.
        start: the first line of the last start; None if there was no start.
        outcome: outcome of the last start; None if it has not recorded its end.
        exit_code: its exit code; None likewise.
        account: what the run has taken.
        whole: the same at the end of the last start, or so far, beside what was predicted.
    """

    def __init__(self) -> None:
        self.now_s = self.until_s = 0.0
        self.start_s: list[float] = []
        self.started_at = ""
        self.name = ""
        self.outcome: str | None = None
        self.exit_code: int | None = None
        self.start: RunStartedLine | None = None
        self.account = RunAccount()
        self._whole: WholeRun | None = None
        self.slot_names: tuple[str, ...] = ()
        self.holds: list[Hold] = []
        self.rounds: list[Round] = []
        self.done: set[str] = set()
        self.pruned: set[str] = set()
        self.stopped: set[str] = set()
        self.failed: dict[str, tuple[str, str]] = {}
        self.curves: dict[str, list[EpochPoint]] = {}
        self.preprocessor_samples_per_s: float | None = None
        self.bad_samples: set[int] = set()
        self.prediction: PredictedDuration | None = None
        self.left_out: list[LeftOut] = []
        self.warnings: dict[ModelWarning, None] = {}
        self.schedule: Schedule | None = None
        self.shares: dict[str, list[SharePoint]] = {}
        self.best: dict[str, list[BestKeptLine]] = {}
        self.last_saved: dict[str, int | None] = {}
        self.busy: list[MachineBusy] = []
        self.decided_s = 0.0
        self._base_unix_s: float | None = None
        self._open: dict[str, Hold] = {}
        self._planned: dict[tuple[str, int], float] = {}
        self._trained: dict[tuple[str, int], tuple[float, float]] = {}

    def take(self, entry: Entry) -> None:
        """Process the next line.

        Raises:
            ValueError: if a group has slots that the cluster lacks, or shares for another number of slots.
        """
        line = entry.line
        self.account.take(entry.unix_s, line)
        if isinstance(line, RunStartedLine):
            self._begin(entry, line)
        if self._base_unix_s is None:
            return
        self.now_s = max(self.now_s, self.start_s[-1] + entry.unix_s - self._base_unix_s)
        match line:
            case StartProfiling(groups):
                self._hold(groups, "profiling")
            case StartRound(plan):
                self._end_round()
                self.rounds.append(Round(plan.index, self.now_s, len(plan.groups), plan.num_preprocessors))
                self._hold_plan(plan, plan.index)
            case StartGroup(plan):
                self._hold_plan(plan, None)
            case StopStream():
                self._end_round()
            case EpochDone():
                self._take_epoch(line)
            case CheckpointWritten() | BestKeptLine():
                self._take_saved(line)
            case LeaveRound(dnn) if dnn in self._open:
                self._open[dnn].to_leave = True
            case GroupLeft(dnn):
                if (hold := self._open.get(dnn)) is not None:
                    hold.left = line
                self._release(dnn)
            case _:
                self._take_other(line)

    # ---- what came of it -----------------------------------------------------------------------

    @property
    def end_s(self) -> float:
        """Return the end of the time axis."""
        return max(self.now_s, self.until_s)

    @property
    def whole(self) -> WholeRun:
        """Return what the run has taken, as its last start has recorded it, or up to its last line."""
        return self.account.whole() if self._whole is None else self._whole

    def spans(self) -> tuple[SlotSpan, ...]:
        """Return which DNN held each slot when."""
        return tuple(
            SlotSpan(slot, hold.dnn, hold.start_s, hold.until(self.end_s), hold.kind, role)
            for hold in self.holds
            for slot, role in zip(hold.slots, hold.roles or ("",) * len(hold.slots), strict=True)
        )

    def use(self) -> tuple[SlotUse, ...]:
        """Return how each slot spent the whole time."""
        seconds: list[dict[str, float]] = [{} for _ in self.slot_names]
        for hold in self.holds:
            for slot in hold.slots:
                for kind, part in hold.seconds_by_use(slot, self.end_s).items():
                    seconds[slot][kind] = seconds[slot].get(kind, 0.0) + part
        for parts in seconds:
            parts["idle"] = max(0.0, self.end_s - sum(parts.values()))
        return tuple(SlotUse(slot, parts) for slot, parts in enumerate(seconds))

    def rates(self) -> tuple[RateComparison, ...]:
        """The rates of every DNN on every number of slots, in order of appearance."""
        return tuple(
            RateComparison(
                dnn, num_slots, self._planned.get((dnn, num_slots)), samples / seconds if seconds else None
            )
            for (dnn, num_slots), (samples, seconds) in self._trained.items()
        )

    def round_reports(self) -> tuple[RoundReport, ...]:
        """Return all rounds."""
        epochs: dict[int | None, list[Epoch]] = defaultdict(list)
        for hold in self.holds:
            epochs[hold.round_index].extend(hold.epochs)
        return tuple(
            RoundReport(
                each.index,
                each.start_s,
                self.end_s if each.end_s is None else each.end_s,
                each.num_dnns,
                each.num_preprocessors,
                _stream_rate(epochs[each.index]),
            )
            for each in self.rounds
        )

    def waits(self) -> tuple[GroupWait, ...]:
        """Return the slots that groups waited for."""
        return waits_of(self.holds)

    def works(self) -> tuple[WorkReport, ...]:
        """Return the work of groups whose samples differ in size."""
        return works_of(self.holds)

    def cost_by_dnn(self) -> dict[str, tuple[float, float]]:
        """Return (seconds in groups, slot-seconds) of each DNN, including profiling.

        The run has recorded both. The times of its lines do not give them: a line may be written late.
        """
        costs: dict[str, tuple[float, float]] = {}
        for hold in self.holds:
            wall_time_s, slot_seconds = costs.get(hold.dnn, (0.0, 0.0))
            length_s = hold.until(self.end_s) - hold.start_s if hold.left is None else hold.left.wall_time_s
            costs[hold.dnn] = (wall_time_s + length_s, slot_seconds + length_s * len(hold.slots))
        return costs

    # ---- parts ---------------------------------------------------------------------------------

    def _begin(self, entry: Entry, line: RunStartedLine) -> None:
        self._release_all()  # left open by a start that was killed
        self._base_unix_s = entry.unix_s
        self.start_s.append(self.now_s)
        self.started_at = self.started_at or entry.time
        self.name = line.name
        self.outcome = self.exit_code = None
        self.start, self._whole = line, None
        names = slot_names([(node.host, node.num_slots) for node in line.nodes], KINDS[line.kind])
        self.slot_names = max(names, self.slot_names, key=len)

    def _hold_plan(self, plan: RoundPlan, round_index: int | None) -> None:
        for dnn, num_epochs in plan.epochs.items():
            # Later epochs were lost when the run was killed; they will be trained again.
            del self.curves.setdefault(dnn, [])[num_epochs:]
            self.best[dnn] = [kept for kept in self.best.get(dnn, ()) if kept.epoch <= num_epochs]
            self.shares[dnn] = [point for point in self.shares.get(dnn, ()) if point.epoch <= num_epochs]
        for group in plan.groups:
            rate = plan.predicted_rate_samples_per_s.get(group.dnn_id)
            if rate is not None:
                self._planned[group.dnn_id, len(group.slots)] = rate
        self._hold(plan.groups, "training", round_index)

    def _hold(self, groups: Iterable[GroupPlan], kind: SpanKind, round_index: int | None = None) -> None:
        for group in groups:
            self._release(group.dnn_id)
            if not all(0 <= slot < len(self.slot_names) for slot in group.slots):
                raise ValueError(f"slots {list(group.slots)} of a cluster that has {len(self.slot_names)}")
            hold = Hold(group.dnn_id, group.slots, self.now_s, kind, round_index)
            self.holds.append(hold)
            self._open[hold.dnn] = hold

    def _assign(self, roles: Sequence[str]) -> None:
        """Hold the slots of a job on parameter servers that have roles."""
        used = {slot: role for slot, role in enumerate(roles) if role != "standby"}
        self._hold([GroupPlan(self.name, tuple(used))], "training")
        self._open[self.name].roles = tuple(used.values())

    def _release(self, dnn: str) -> None:
        hold = self._open.pop(dnn, None)
        if hold is not None:
            hold.end_s = self.now_s

    def _release_all(self) -> None:
        for dnn in list(self._open):
            self._release(dnn)
        self._end_round()

    def _end_round(self) -> None:
        if self.rounds and self.rounds[-1].end_s is None:
            self.rounds[-1].end_s = self.now_s

    def _take_epoch(self, line: EpochDone) -> None:
        dnn, facts = line.dnn_id, line.facts
        self.pruned.discard(dnn)  # it trains on without the rule
        curve = self.curves.setdefault(dnn, [])
        curve.append(EpochPoint(len(curve) + 1, finite_metrics(line.metrics)))
        hold = self._open.get(dnn)
        if hold is None:
            return
        hold.epochs.append(
            Epoch(
                self.now_s,
                _known(line.seconds),
                _known(facts.wait_s),
                line.pass_index,
                facts.num_samples,
                _known(facts.trained_s),
                None if line.straggler is None or math.isnan(line.straggler.late_s) else line.straggler,
                facts.ranks,
            )
        )
        point = share_point(line, hold.slots, len(curve))
        if point is not None:
            self.shares.setdefault(dnn, []).append(point)
        trained, seconds = self._trained.setdefault((dnn, len(hold.slots)), (0.0, 0.0))
        # The first epoch on these slots builds and traces the network; planned rates leave that out.
        if len(hold.epochs) > 1 and facts.num_trained and facts.trained_s >= _LEAST_TRAINED_S:
            self._trained[dnn, len(hold.slots)] = (trained + facts.num_trained, seconds + facts.trained_s)

    def _take_job_epoch(self, line: JobEpochLine) -> None:
        curve = self.curves.setdefault(line.job, [])
        curve[:] = [point for point in curve if point.epoch < line.epoch]  # later ones were lost in a kill
        curve.append(EpochPoint(line.epoch, line.metrics))
        if (hold := self._open.get(line.job)) is not None:
            samples = sum(worker.samples for worker in line.workers)
            seconds, start_s = _known(line.seconds), self.start_s[-1]
            workers = {
                worker.executor - 1: (_known(worker.compute_s), _known(worker.pull_s))
                for worker in line.workers
            }
            epoch = Epoch(self.now_s, seconds, 0.0, line.epoch - 1, samples, workers=workers)
            hold.epochs.append(epoch)
            if seconds >= _LEAST_TRAINED_S:
                self.busy += [
                    MachineBusy(
                        worker.executor - 1,
                        max(start_s, self.now_s - seconds),
                        self.now_s,
                        min(1.0, _known(worker.compute_s) / seconds),
                        worker.num_bytes / seconds,
                    )
                    for worker in line.workers
                ]

    def _take_saved(self, line: CheckpointWritten | BestKeptLine) -> None:
        hold = self._open.get(line.dnn_id)
        if hold is not None:
            hold.held_s += _known(line.held_s)
        if isinstance(line, BestKeptLine):
            self.best.setdefault(line.dnn_id, []).append(line)
        else:
            self.last_saved[line.dnn_id] = None if line.only_progress else line.epoch

    def _take_other(self, line: Line) -> None:
        match line:
            case RolesAssignedLine(roles):
                self._assign(roles)
            case ReconfiguredLine():
                self._assign(line.roles)
            case JobEpochLine():
                self._take_job_epoch(line)
            case JobSavedLine(job) if job in self._open:
                self._open[job].held_s += _known(line.seconds)
            case JobFailedLine(job):
                self.failed[job] = (line.cause, line.detail)
            case DnnDoneLine(dnn) | JobDoneLine(dnn):
                self.done.add(dnn)
            case DnnPrunedLine(dnn):
                self.pruned.add(dnn)
            case DnnStoppedLine(dnn):
                self.stopped.add(dnn)
            case DnnFailed(dnn, cause, detail):
                self.failed[dnn] = (cause, detail)
            case DnnRetriedLine(dnn):
                self.failed.pop(dnn, None)
            case LeaveOut(dnn, slot):
                self.left_out.append(LeftOut(dnn, slot, self.now_s))
            case ModelWarningLine(dnn, detail):
                self.warnings[ModelWarning(dnn, detail)] = None
            case ScheduleChosen(schedule):
                self.schedule = schedule
            case PreprocessingMeasured(samples_per_s) if not math.isnan(samples_per_s):
                self.preprocessor_samples_per_s = samples_per_s
            case BadSampleLine(sample_id):
                self.bad_samples.add(sample_id)
            case PredictionLine() if not math.isnan(line.remaining_s):
                self.prediction = PredictedDuration(self.now_s + line.remaining_s)
            case RunFinishedLine():
                self.outcome, self.exit_code = line.outcome, line.exit_code
                self.decided_s += _known(line.decided_s)
                self._take_end(line)

    def _take_end(self, line: RunFinishedLine) -> None:
        """Take the sums over a whole start, which are more accurate than earlier values."""
        if line.predicted_s is not None and line.actual_s is not None:  # of this start alone
            before_s = self.start_s[-1]
            self.prediction = PredictedDuration(before_s + line.predicted_s, before_s + line.actual_s)
        self._whole = line.whole
        if line.whole is not None and line.whole.expected_s is not None and line.predicted_s is None:
            self.prediction = PredictedDuration(line.whole.expected_s, line.whole.active_s)
        if line.preprocessing_s > 0.0:
            self.preprocessor_samples_per_s = line.num_preprocessed / line.preprocessing_s


def _known(seconds: float) -> float:
    """A measured time; 0 if it could not be measured."""
    return 0.0 if math.isnan(seconds) else seconds


def _stream_rate(epochs: Iterable[Epoch]) -> float | None:
    """Samples per second of the passes of a round; a pass takes as long as its slowest DNN."""
    samples: dict[int, float] = defaultdict(float)
    seconds: dict[int, float] = defaultdict(float)
    for epoch in epochs:
        samples[epoch.pass_index] = max(samples[epoch.pass_index], epoch.samples)
        seconds[epoch.pass_index] = max(seconds[epoch.pass_index], epoch.seconds)
    total_s = sum(seconds.values())
    return sum(samples.values()) / total_s if total_s > 0.0 else None


def slot_names(nodes: Iterable[tuple[str, int]], kind: Kind = ENSEMBLE) -> tuple[str, ...]:
    """Return one name per slot, given the (host, slots) of each node; nodes that share hosts have numbers."""
    nodes = list(nodes)
    if len(nodes) == 1:
        return tuple(f"{kind.slot} {kind.first_slot + slot}" for slot in range(nodes[0][1]))
    hosts = [host for host, _ in nodes]
    unique = len(set(hosts)) == len(hosts)
    return tuple(
        f"{host if unique else f'node {number}'}:{slot}"
        for number, (host, count) in enumerate(nodes)
        for slot in range(count)
    )

"""Read waits, held slots, shared machines and forecasts from a ledger."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hpcbal.events.ensemble import EpochDone, GroupLeft
from hpcbal.events.history import RankFacts, Straggler
from hpcbal.events.line import Line
from hpcbal.report.model import (
    GroupWait,
    MachineBusy,
    MachineReport,
    RateComparison,
    SharePoint,
    SharingReport,
    SlotSpan,
    SlotUse,
    SpanKind,
    WorkReport,
)
from hpcbal.telemetry.ledger.job_lines import (
    GroupMeasuredLine,
    JobDoneLine,
    JobEpochLine,
    JobFailedLine,
    JobsGroupedLine,
    JobStays,
    MachinesBusyLine,
    MachinesUsedLine,
    ReconfiguredLine,
    ThroughputForecastLine,
)
from hpcbal.telemetry.ledger.run import RunFinishedLine, RunStartedLine
from hpcbal.telemetry.views.summary import group_work


@dataclass
class Epoch:
    """One epoch of the ledger.

    Attributes:
        end_s: its end on the report's time axis.
        trained_s: the time of its steps.
        workers: of a job on parameter servers, by slot: for how long it computed, and waited for parameters.
    """

    end_s: float
    seconds: float
    wait_s: float
    pass_index: int
    samples: float
    trained_s: float = 0.0
    straggler: Straggler | None = None
    ranks: RankFacts | None = None
    workers: Mapping[int, tuple[float, float]] | None = None


@dataclass
class Hold:
    """A DNN holds slots, from the order to start until it has left them.

    Attributes:
        kind: whether it trains or is profiled.
        round_index: index of the round; None outside of rounds.
        end_s: when it left the slots; None while it holds them.
        left: the line that says so; None if it holds them, or its start was killed.
        held_s: seconds for which checkpoints kept it from training.
        to_leave: whether it was asked to leave after a whole pass.
        roles: of a job on parameter servers, what each of its slots does.
    """

    dnn: str
    slots: tuple[int, ...]
    start_s: float
    kind: SpanKind
    round_index: int | None = None
    end_s: float | None = None
    left: GroupLeft | None = None
    epochs: list[Epoch] = field(default_factory=list)
    held_s: float = 0.0
    to_leave: bool = False
    roles: tuple[str, ...] = ()

    def until(self, now_s: float) -> float:
        """Return when it left the slots, or `now_s` while it holds them."""
        return now_s if self.end_s is None else self.end_s

    def seconds_by_use(self, slot: int, now_s: float) -> dict[str, float]:
        """Return the time of one of its slots until `now_s`, split by USE_KINDS."""
        end_s = self.until(now_s)
        total = max(0.0, end_s - self.start_s)
        if self.kind == "profiling":
            return {"profiling": total}
        left = total
        seconds: dict[str, float] = {}

        def take(kind: str, wanted: float) -> None:
            nonlocal left
            seconds[kind] = min(left, max(0.0, wanted))
            left -= seconds[kind]

        parts = [
            (epoch.seconds - epoch.wait_s, epoch.wait_s)
            if epoch.workers is None
            else epoch.workers.get(slot, (0.0, 0.0))
            for epoch in self.epochs
        ]
        take("training", sum(trained_s for trained_s, _ in parts))
        take("data", sum(waited_s for _, waited_s in parts))
        take("checkpoint", self.held_s)
        if self.epochs:
            take("starting", self.epochs[0].end_s - self.epochs[0].seconds - self.start_s)
            if not self.to_leave and not self.roles:  # the last pass was not completed
                seconds["training"] += min(left, max(0.0, end_s - self.epochs[-1].end_s))
                left = max(0.0, left - (end_s - self.epochs[-1].end_s))
            take("peers", left)
        else:
            take("starting" if self.roles else "training", left)
        return seconds


def share_point(line: EpochDone, slots: Sequence[int], epoch: int) -> SharePoint | None:
    """The share of each of the group's `slots` in a step; None if the group was not balanced.

    If samples differ in size, it is the share of the work in all steps of the epoch.

    Raises:
        ValueError: if the line has shares for another number of slots.
    """
    facts = line.facts
    sizes: Sequence[float] = () if facts.balance is None else facts.balance.shares
    if facts.ranks is not None and facts.ranks.work is not None:
        sizes = facts.ranks.work
    if not sum(sizes):
        return None
    return SharePoint(epoch, {slot: size / sum(sizes) for slot, size in zip(slots, sizes, strict=True)})


def waits_of(holds: Iterable[Hold]) -> tuple[GroupWait, ...]:
    """Return the main wait of each group of two or more slots, the costliest first."""
    waits = (_wait_of(hold) for hold in holds if len(hold.slots) > 1)
    return tuple(sorted((wait for wait in waits if wait is not None), key=lambda wait: -wait.late_s))


def works_of(holds: Iterable[Hold]) -> tuple[WorkReport, ...]:
    """The work of each group whose samples differ in size, the most imbalanced first."""
    works = (_work_of(hold) for hold in holds if len(hold.slots) > 1)
    return tuple(sorted(filter(None, works), key=lambda work: -(work.imbalance_left or 0.0)))


def _work_of(hold: Hold) -> WorkReport | None:
    work = group_work([epoch.ranks for epoch in hold.epochs if epoch.ranks is not None])
    if work is None:
        return None
    by_slot = dict(zip(hold.slots, work.relative, strict=True))
    return WorkReport(hold.dnn, hold.round_index, by_slot, work.imbalance_left, work.waited, work.num_epochs)


def _wait_of(hold: Hold) -> GroupWait | None:
    late_s: dict[tuple[int | None, str], float] = defaultdict(float)
    num_late: dict[tuple[int | None, str], int] = defaultdict(int)
    for epoch in hold.epochs:
        if epoch.straggler is not None:
            cause = (epoch.straggler.slot, epoch.straggler.why)
            late_s[cause] += epoch.straggler.late_s
            num_late[cause] += 1
    if not late_s:
        return None
    worst = max(late_s, key=late_s.__getitem__)
    trained_s = sum(epoch.trained_s for epoch in hold.epochs)
    return GroupWait(
        job=hold.dnn,
        round_index=hold.round_index,
        num_slots=len(hold.slots),
        slot=worst[0],
        why=worst[1],
        late_s=late_s[worst],
        share=min(1.0, late_s[worst] / trained_s) if trained_s > 0.0 else 0.0,
        num_late=num_late[worst],
        num_epochs=len(hold.epochs),
    )


LEAST_S = 0.1
"""When a job is over, the next decision replaces its group within milliseconds."""

Key = tuple[tuple[str, ...], tuple[int, ...]]
"""Jobs and machines of a group."""


class SharingReplay:
    """The facts on groups of jobs from the lines read so far.

    Attributes:
        machines: use of each machine in the last start that has recorded it, in the order of the ranks.
        waiting: jobs that wait for machines, in order of arrival.
        busy: how busy the machines were from when until when.
    """

    def __init__(self) -> None:
        self.machines: tuple[MachineReport, ...] = ()
        self.waiting: tuple[str, ...] = ()
        self.busy: list[MachineBusy] = []
        self._start_s = 0.0
        self._was_recorded = False  # in this start, how busy machines were from time to time
        self._over: list[SharingReport] = []
        self._open: dict[Key, SharingReport] = {}
        self._stays = JobStays()

    def take(self, now_s: float, line: Line) -> None:
        """Process the next line, `now_s` seconds of running after the first start."""
        self._stays.take(now_s, line)
        match line:
            case RunStartedLine() | RunFinishedLine():
                self._end(now_s, keep=set())
                self._start_s, self._was_recorded, self.waiting = now_s, False, ()
            case JobsGroupedLine(groups):
                self.waiting = line.waiting
                self._end(now_s, keep={(group.jobs, group.machines) for group in groups})
                for group in groups:
                    new = SharingReport(group.jobs, group.machines, now_s, now_s, group.predicted_s)
                    self._open.setdefault((group.jobs, group.machines), new)
            case GroupMeasuredLine(jobs, machines, predicted_s, measured_s):
                if (began := self._open.get((jobs, machines))) is not None:
                    known = replace(began, predicted_s=predicted_s, measured_s=measured_s)
                    self._open[jobs, machines] = known
            case JobDoneLine(job) | JobFailedLine(job):
                self._without(now_s, job)
            case MachinesUsedLine(ranks, cpu, network, memory, _):
                rows = sorted(zip(ranks, cpu, network, memory, strict=True))
                self.machines = tuple(MachineReport(*row) for row in rows)
                if not self._was_recorded:  # by an older version
                    self.busy += [
                        MachineBusy(rank - 1, self._start_s, now_s, *shares)
                        for rank, *shares in zip(ranks, cpu, network, strict=True)
                    ]
            case MachinesBusyLine():
                self._was_recorded = True
                self.busy += [
                    MachineBusy(rank - 1, max(self._start_s, now_s - seconds), now_s, *shares)
                    for rank, seconds, *shares in zip(
                        line.machines, line.seconds, line.cpu, line.network, strict=True
                    )
                ]

    def groups(self, end_s: float) -> tuple[SharingReport, ...]:
        """Return all groups until `end_s` by their start, but those that others have replaced at once."""
        every = [*self._over, *(replace(group, end_s=end_s) for group in self._open.values())]
        lasted = [group for group in every if group.end_s - group.start_s >= LEAST_S]
        return tuple(sorted(lasted, key=lambda group: (group.start_s, group.machines)))

    def cost_by_job(self, end_s: float) -> dict[str, tuple[float, float]]:
        """See `JobStays`."""
        return self._stays.cost_by_job(end_s)

    def spans(self, end_s: float) -> tuple[SlotSpan, ...]:
        """Return which jobs were on each machine when, until `end_s`."""
        return tuple(
            SlotSpan(rank - 1, stay.job, stay.start_s, stay.end_s)
            for stay in self._stays.until(end_s)
            for rank in stay.machines
        )

    def use(self, num_machines: int, end_s: float) -> tuple[SlotUse, ...]:
        """Return for how long each machine computed until `end_s`, and for how long there were jobs on it."""
        spans: dict[int, list[SlotSpan]] = defaultdict(list)
        for span in self.spans(end_s):
            spans[span.slot].append(span)
        computed_s: dict[int, float] = defaultdict(float)
        for busy in self.busy:
            computed_s[busy.slot] += busy.cores * (busy.end_s - busy.start_s)
        found = []
        for slot in range(num_machines):
            used_s = _union_s((span.start_s, span.end_s) for span in spans[slot])
            parts = {"training": min(used_s, computed_s[slot])}
            parts["peers"] = used_s - parts["training"]
            found.append(SlotUse(slot, {**parts, "idle": max(0.0, end_s - used_s)}))
        return tuple(found)

    def _end(self, now_s: float, keep: set[Key]) -> None:
        for key in [key for key in self._open if key not in keep]:
            self._over.append(replace(self._open.pop(key), end_s=now_s))

    def _without(self, now_s: float, job: str) -> None:
        """A job is over: others of its group stay together."""
        for jobs, machines in [key for key in self._open if job in key[0]]:
            self._over.append(replace(self._open.pop((jobs, machines)), end_s=now_s))
            others = tuple(other for other in jobs if other != job)
            if others:
                self._open[others, machines] = SharingReport(others, machines, now_s, now_s)


def _union_s(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds that are in any of some spans."""
    found, until_s = 0.0, 0.0
    for start_s, end_s in sorted(spans):
        found += max(0.0, end_s - max(start_s, until_s))
        until_s = max(until_s, end_s)
    return found


class ForecastReplay:
    """Compares the last forecast with the epochs after it.

    The first epoch of a start is left out, since it includes the start. Epochs count until the job is
    reconfigured: the forecast is of the workers and servers with which it began.
    """

    def __init__(self) -> None:
        self._forecast: ThroughputForecastLine | None = None
        self._is_over = False
        self._num_epochs = 0
        self._samples = 0
        self._seconds = 0.0

    def take(self, line: Line) -> None:
        """Process the next line."""
        match line:
            case ThroughputForecastLine():
                self._forecast, self._is_over = line, False
                self._num_epochs, self._samples, self._seconds = 0, 0, 0.0
            case RunStartedLine() | ReconfiguredLine():
                self._is_over = True
            case JobEpochLine() if self._forecast is not None and not self._is_over:
                self._num_epochs += 1
                if self._num_epochs > 1 and not math.isnan(line.seconds):
                    self._samples += sum(worker.samples for worker in line.workers)
                    self._seconds += line.seconds

    def rates(self) -> tuple[RateComparison, ...]:
        """The comparison; empty without a forecast, or before a second epoch."""
        found = self._forecast
        if found is None or not self._seconds > 0.0:
            return ()
        num_slots = found.num_workers + found.num_servers
        return (RateComparison(found.job, num_slots, found.samples_per_s, self._samples / self._seconds),)

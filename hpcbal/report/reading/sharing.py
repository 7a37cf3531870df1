"""Which jobs shared which machines when, and how busy these were, from the lines of a ledger."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from hpcbal.report.model import MachineReport, SharingReport, SlotUse
from hpcbal.telemetry.ledger import (
    GroupMeasuredLine,
    JobDoneLine,
    JobFailedLine,
    JobsGroupedLine,
    JobStays,
    Line,
    MachinesUsedLine,
    RunFinishedLine,
    RunStartedLine,
    Stay,
)

LEAST_S = 0.1
"""When a job is over, the next decision replaces its group within milliseconds."""

Key = tuple[tuple[str, ...], tuple[int, ...]]
"""Jobs and machines of a group."""


class SharingReplay:
    """The facts on groups of jobs from the lines read so far.

    Attributes:
        machines: use of each machine in the last start that has recorded it, in the order of the ranks.
    """

    def __init__(self) -> None:
        self.machines: tuple[MachineReport, ...] = ()
        self._over: list[SharingReport] = []
        self._open: dict[Key, SharingReport] = {}
        self._stays = JobStays()

    def take(self, now_s: float, line: Line) -> None:
        """Process the next line, `now_s` seconds of running after the first start."""
        self._stays.take(now_s, line)
        match line:
            case RunStartedLine() | RunFinishedLine():
                self._end(now_s, keep=set())
            case JobsGroupedLine(groups):
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

    def close(self, end_s: float) -> None:
        """Whatever has not ended lasts until `end_s`."""
        self._end(end_s, keep=set())
        self._stays.close(end_s)

    def groups(self) -> tuple[SharingReport, ...]:
        """All groups by their start, but those that others have replaced at once; call after `close`."""
        lasted = [group for group in self._over if group.end_s - group.start_s >= LEAST_S]
        return tuple(sorted(lasted, key=lambda group: (group.start_s, group.machines)))

    def cost_by_job(self) -> dict[str, tuple[float, float]]:
        """See `JobStays`; call after `close`."""
        return self._stays.cost_by_job()

    def use(self, num_machines: int, end_s: float) -> tuple[SlotUse, ...]:
        """For how long there were jobs on each machine of ranks 1, 2, ...; call after `close`."""
        stays: dict[int, list[Stay]] = defaultdict(list)
        for stay in self._stays.over:
            for rank in stay.machines:
                stays[rank].append(stay)
        found = []
        for slot in range(num_machines):
            used_s = _union_s((stay.start_s, stay.end_s) for stay in stays[slot + 1])
            found.append(SlotUse(slot, {"training": used_s, "idle": max(0.0, end_s - used_s)}))
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

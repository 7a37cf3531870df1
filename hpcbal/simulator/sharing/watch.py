"""What was predicted of groups of jobs, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcbal.paramserver.sharing.placing import Sharing
from hpcbal.policies.grouping import JobLoad
from hpcbal.simulator.sharing.record import GroupTimes
from hpcbal.simulator.sharing.started_job import StartedJob

LEAST_ITERATIONS = 4
"""Of each job of a group, so that its iterations are measured."""


@dataclass(frozen=True, slots=True)
class _Open:
    start_s: float
    predicted_s: float | None


class GroupWatch:
    """Follows groups from their beginning to their end.

    Attributes:
        groups: that have ended.
    """

    def __init__(self) -> None:
        self.groups: list[GroupTimes] = []
        self._open: dict[Sharing, _Open] = {}
        self._placed_s: dict[str, tuple[tuple[int, ...], float]] = {}

    def placed_s(self, job: str) -> float:
        """Since when a job has belonged to the machines of its present group."""
        return self._placed_s[job][1]

    def look(
        self,
        groups: Sequence[Sharing],
        loads: Mapping[str, JobLoad],
        running: Mapping[str, StartedJob],
        now_s: float,
    ) -> None:
        """Groups are now these."""
        for sharing in [each for each in self._open if each not in groups]:
            self._close(sharing, running, now_s)
        self._placed_s = {
            job: old
            if (old := self._placed_s.get(job)) is not None and old[0] == sharing.machines
            else (sharing.machines, now_s)
            for sharing in groups
            for job in sharing.jobs
        }
        for sharing in groups:
            if sharing not in self._open:
                self._open[sharing] = _Open(now_s, sharing.predicted_s(loads))

    def close_of(self, job: str, running: Mapping[str, StartedJob], now_s: float) -> None:
        """A job is done, and so is its group as it was."""
        for sharing in [each for each in self._open if job in each.jobs]:
            self._close(sharing, running, now_s)

    def _close(self, sharing: Sharing, running: Mapping[str, StartedJob], now_s: float) -> None:
        began = self._open.pop(sharing)
        measured_s = _measured_s(sharing, began.start_s, running)
        self.groups.append(GroupTimes(sharing, began.start_s, now_s, began.predicted_s, measured_s))


def _measured_s(sharing: Sharing, start_s: float, running: Mapping[str, StartedJob]) -> float | None:
    """Mean time of an iteration of the slowest job, from the first iteration that all jobs were there for."""
    ends: list[list[float]] = []
    for job in sharing.jobs:
        run = running.get(job)
        if run is None or run.machines != sharing.machines:
            return None
        ends.append([end_s for end_s in run.ended_s if end_s >= start_s])
    if not all(ends):
        return None
    all_there_s = max(each[0] for each in ends)
    counted = [[end_s for end_s in each if end_s >= all_there_s] for each in ends]
    if min(map(len, counted)) < LEAST_ITERATIONS:
        return None
    return max((each[-1] - each[0]) / (len(each) - 1) for each in counted)

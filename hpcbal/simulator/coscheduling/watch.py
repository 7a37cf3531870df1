"""Compare predictions for groups of jobs with their measured iterations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcbal.paramserver.coscheduling.placing import Sharing
from hpcbal.paramserver.coscheduling.profiling import measured_iteration_s
from hpcbal.policies.grouping import JobLoad
from hpcbal.simulator.coscheduling.record import FinishedGroup
from hpcbal.simulator.coscheduling.started_job import StartedJob


@dataclass(frozen=True, slots=True)
class _Open:
    start_s: float
    predicted_s: float | None
    since: Mapping[StartedJob, int]  # periods that were measured before


class GroupRecorder:
    """Follows groups from their beginning to their end.

    Attributes:
        groups: that have ended.
    """

    def __init__(self) -> None:
        self.groups: list[FinishedGroup] = []
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
        since = {run: run.meter.num_periods for run in running.values()}
        for sharing in groups:
            if sharing not in self._open:
                self._open[sharing] = _Open(now_s, sharing.predicted_s(loads), since)

    def close_of(self, job: str, running: Mapping[str, StartedJob], now_s: float) -> None:
        """A job is done, and so is its group as it was."""
        for sharing in [each for each in self._open if job in each.jobs]:
            self._close(sharing, running, now_s)

    def _close(self, sharing: Sharing, running: Mapping[str, StartedJob], now_s: float) -> None:
        began = self._open.pop(sharing)
        measured_s = _measured_s(sharing, began.since, running)
        self.groups.append(FinishedGroup(sharing, began.start_s, now_s, began.predicted_s, measured_s))


def _measured_s(
    sharing: Sharing, since: Mapping[StartedJob, int], running: Mapping[str, StartedJob]
) -> float | None:
    """See `measured_iteration_s`; None: a job is not on its machines."""
    jobs = [running.get(name) for name in sharing.jobs]
    if any(job is None or job.ranks != sharing.machines for job in jobs):
        return None
    return measured_iteration_s((job.meter, since.get(job, 0)) for job in jobs if job is not None)

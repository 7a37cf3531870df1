"""The records of simulated jobs that share machines."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcbal.paramserver.coscheduling.profiling import measured_iteration_s
from hpcbal.paramserver.coscheduling.scheduler import Sharing
from hpcbal.policies.grouping.groups import JobLoad
from hpcbal.simulator.coscheduling.started_job import StartedJob


@dataclass(frozen=True, slots=True)
class JobTimes:
    """One job; times are in seconds since the start of the run.

    Attributes:
        arrived_s, began_s, ended_s: when it was submitted, first placed on machines, and done.
        machine_s: seconds on machines, times their number.
        num_moves: how often it has changed its machines.
        still_s: for how long it stood still to stop and to start again, without its first start.
    """

    name: str
    arrived_s: float
    began_s: float
    ended_s: float
    machine_s: float
    num_moves: int
    still_s: float

    @property
    def completion_s(self) -> float:
        """From its submission to its end (JCT)."""
        return self.ended_s - self.arrived_s


@dataclass(frozen=True, slots=True)
class FinishedGroup:
    """One group, as long as the same jobs shared the same machines and all of them ran.

    Attributes:
        sharing: jobs and machines.
        start_s, end_s: since the start of the run.
        predicted_s: of a group iteration, when the group was formed; None: jobs had not been measured.
        measured_s: mean time of an iteration of its slowest job; None: there were too few.
    """

    sharing: Sharing
    start_s: float
    end_s: float
    predicted_s: float | None
    measured_s: float | None

    @property
    def error(self) -> float | None:
        """Error of the prediction, as a share of the measured time; None if it is not known."""
        if self.predicted_s is None or self.measured_s is None:
            return None
        return abs(self.predicted_s - self.measured_s) / self.measured_s


@dataclass(frozen=True, slots=True)
class SharingRun:
    """Simulated jobs.

    Attributes:
        jobs: in the order in which they were given.
        groups: in the order of their ends.
        num_decisions: changes of groups.
        moving_machine_s: seconds for which jobs stood still to move, times the machines of their new group
            over the number of its jobs.
        cpu_s, network_s: by rank, for how long cores and link were used.
    """

    jobs: tuple[JobTimes, ...]
    groups: tuple[FinishedGroup, ...]
    num_decisions: int
    moving_machine_s: float
    cpu_s: Mapping[int, float]
    network_s: Mapping[int, float]

    @property
    def makespan_s(self) -> float:
        """From the start of the run to the end of the last job."""
        return max(job.ended_s for job in self.jobs)

    @property
    def mean_completion_s(self) -> float:
        """Mean of the jobs' completion times (JCT)."""
        return statistics.mean(job.completion_s for job in self.jobs)

    @property
    def cpu_use(self) -> float:
        """Share of the makespan for which cores were used, mean of all machines."""
        return statistics.mean(self.cpu_s.values()) / self.makespan_s

    @property
    def network_use(self) -> float:
        """Share of the makespan for which links were used, mean of all machines."""
        return statistics.mean(self.network_s.values()) / self.makespan_s

    @property
    def moving_share(self) -> float:
        """Share of all machines' time that moves cost."""
        return self.moving_machine_s / (self.makespan_s * len(self.cpu_s))

    @property
    def mean_jobs(self) -> float:
        """Jobs that are on machines at a time, on average."""
        return sum(job.ended_s - job.began_s for job in self.jobs) / self.makespan_s

    @property
    def group_errors(self) -> list[float]:
        """Errors of the predictions of group iterations, ascending."""
        return sorted(group.error for group in self.groups if group.error is not None)


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

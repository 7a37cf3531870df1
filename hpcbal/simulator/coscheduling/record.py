"""The records of simulated jobs that share machines."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from hpcbal.paramserver.coscheduling.placing import Sharing


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

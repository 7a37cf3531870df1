"""Read the times of a run of many parameter-server jobs from its ledger."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from hpcbal.telemetry.ledger.codec import Entry
from hpcbal.telemetry.ledger.job_lines import (
    JobDoneLine,
    JobEpochLine,
    JobPlacedLine,
    JobRestedLine,
    JobsGroupedLine,
    MachinesUsedLine,
)
from hpcbal.telemetry.ledger.run import RunStartedLine

LEAST_EPOCHS = 2
"""Between the first and the last epoch of each job of a group that counts."""


@dataclass(frozen=True, slots=True)
class GroupTime:
    """A group, as long as the same jobs shared the same machines and none was done.

    Attributes:
        jobs: names of the jobs.
        num_machines: of the group.
        predicted_s: of a group iteration, when the group was formed.
        measured_s: of an iteration of its slowest job, the median of its epochs: one in which another job
            starts, or has its objective computed, is longer.
    """

    jobs: tuple[str, ...]
    num_machines: int
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        """Of the prediction, as a share of what was measured."""
        return abs(self.predicted_s - self.measured_s) / self.measured_s


@dataclass(frozen=True, slots=True)
class RealRun:
    """A run to its end.

    Attributes:
        done_s: when each job was done, in seconds since the start of the run.
        num_moves: changes of machines of all jobs.
        cpu_use, network_use: shares of the run in which cores and links were used, mean of all machines.
        groups: that lasted long enough to measure them.
    """

    done_s: dict[str, float]
    num_moves: int
    cpu_use: float
    network_use: float
    groups: tuple[GroupTime, ...]

    @property
    def makespan_s(self) -> float:
        return max(self.done_s.values())

    @property
    def mean_completion_s(self) -> float:
        """All jobs are submitted at the start."""
        return statistics.mean(self.done_s.values())


def read_run(ledger: Sequence[Entry], steps_per_epoch: int) -> RealRun:
    """Read a run that was started once.

    Args:
        ledger: its entries.
        steps_per_epoch: of every job.

    Raises:
        SystemExit: the run has not ended.
    """
    began_s = next(entry.unix_s for entry in ledger if isinstance(entry.line, RunStartedLine))
    done_s = {
        entry.line.job: entry.unix_s - began_s for entry in ledger if isinstance(entry.line, JobDoneLine)
    }
    used = [entry.line for entry in ledger if isinstance(entry.line, MachinesUsedLine)]
    if not used:
        raise SystemExit("the ledger has no end")
    return RealRun(
        done_s,
        sum(isinstance(entry.line, JobRestedLine) for entry in ledger),
        statistics.mean(used[-1].cpu),
        statistics.mean(used[-1].network),
        tuple(_groups(ledger, steps_per_epoch)),
    )


def _groups(ledger: Sequence[Entry], steps_per_epoch: int) -> list[GroupTime]:
    """Groups, each from when it was formed until it changed or one of its jobs was done."""
    formed = [index for index, entry in enumerate(ledger) if isinstance(entry.line, JobsGroupedLine)]
    found = []
    since: dict[tuple[tuple[str, ...], tuple[int, ...]], tuple[int, float | None]] = {}
    for index, following in itertools.pairwise([*formed, len(ledger)]):
        line = ledger[index].line
        assert isinstance(line, JobsGroupedLine)
        keys = {(group.jobs, group.machines): group.predicted_s for group in line.groups}
        since = {key: since.get(key, (index, predicted_s)) for key, predicted_s in keys.items()}
        next_line = ledger[following].line if following < len(ledger) else None
        kept = (
            {(group.jobs, group.machines) for group in next_line.groups}
            if isinstance(next_line, JobsGroupedLine)
            else set()
        )
        for (jobs, machines), (first, predicted_s) in since.items():
            if (jobs, machines) in kept or predicted_s is None:
                continue
            measured_s = _measured_s(ledger[:following], first, jobs, machines, steps_per_epoch)
            if measured_s is not None:
                found.append(GroupTime(jobs, len(machines), predicted_s, measured_s))
    return found


def _measured_s(
    ledger: Sequence[Entry], first: int, jobs: Sequence[str], machines: tuple[int, ...], steps_per_epoch: int
) -> float | None:
    """Median time of an iteration of the slowest job; None: the group was too short."""
    ends: dict[str, list[float]] = {job: [] for job in jobs}
    places: dict[str, tuple[int, ...]] = {}
    for index, entry in enumerate(ledger):
        line = entry.line
        if isinstance(line, JobPlacedLine):
            places[line.job] = line.machines
        elif isinstance(line, JobDoneLine) and line.job in ends and index > first:
            break
        elif isinstance(line, JobEpochLine) and line.job in ends and index > first:
            ends[line.job] += [entry.unix_s] * (places.get(line.job) == machines)
    if not all(ends.values()):
        return None
    all_there_s = max(times[0] for times in ends.values())
    counted = [[end_s for end_s in times if end_s >= all_there_s] for times in ends.values()]
    if min(map(len, counted)) <= LEAST_EPOCHS:  # ends of epochs
        return None
    epochs = ([end_s - start_s for start_s, end_s in itertools.pairwise(times)] for times in counted)
    return max(map(statistics.median, epochs)) / steps_per_epoch

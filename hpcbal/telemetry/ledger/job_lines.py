"""Lines about parameter-server jobs, alone or sharing machines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from hpcbal.events.line import Facts, Line, Number
from hpcbal.telemetry.ledger.run import RunFinishedLine, RunStartedLine


@dataclass(frozen=True, slots=True)
class RolesAssignedLine(Line):
    """Written at every start: what each executor does first.

    Attributes:
        roles: role of each executor, in order of rank from 1: `worker`, `server`, `both` or `standby`.
        data_blocks: number of blocks of samples at each executor.
        parameter_blocks: number of blocks of parameters at each executor.
        num_samples: number of samples of the dataset.
        parameter_bytes: size of all parameters.
        steps_per_epoch: number of steps in an epoch; null with `consistency: async`.
    """

    event: ClassVar[str] = "roles-assigned"
    roles: tuple[str, ...]
    data_blocks: tuple[int, ...]
    parameter_blocks: tuple[int, ...]
    num_samples: int
    parameter_bytes: int
    steps_per_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class ThroughputForecastLine(Line):
    """Written at the start of an asynchronous job whose operations were profiled.

    Attributes:
        job: name of the job.
        num_workers: number of workers at the start.
        num_servers: number of servers at the start.
        samples_per_s: forecast for all workers together.
        low: lower end of the range in which nine of ten runs are expected, if the forecast's model is right.
        high: its upper end.
    """

    event: ClassVar[str] = "throughput-forecast"
    job: str
    num_workers: int
    num_servers: int
    samples_per_s: Number
    low: Number
    high: Number


@dataclass(frozen=True, slots=True)
class WorkerFacts(Facts):
    """Measurements of one worker in an epoch.

    Attributes:
        executor: its rank.
        turns: number of turns.
        samples: number of samples.
        compute_s: time in the app's code.
        pull_s: time waiting for parameters.
        push_s: time from sending updates until they were applied; overlaps with the next turn.
        num_bytes: pulled and pushed.
    """

    executor: int
    turns: int
    samples: int
    compute_s: Number
    pull_s: Number
    push_s: Number
    num_bytes: int


@dataclass(frozen=True, slots=True)
class JobEpochLine(Line):
    """Written at the end of each epoch of a parameter-server job.

    Attributes:
        job: name of the job.
        epoch: the epoch, from 1.
        seconds: wall time of the epoch, with its objective.
        metrics: metrics of the app; empty if no objective was computed; null for a value that is not finite.
        workers: what each worker did.
    """

    event: ClassVar[str] = "job-epoch"
    job: str
    epoch: int
    seconds: Number
    metrics: Mapping[str, float | None]
    workers: tuple[WorkerFacts, ...] = ()


@dataclass(frozen=True, slots=True)
class ReconfiguredLine(Line):
    """Written when a reconfiguration is complete.

    Attributes:
        job: name of the job.
        why: what caused it; text for users.
        roles: role of each executor after it.
        data_blocks_moved: number of blocks of samples that moved.
        parameter_blocks_moved: number of blocks of parameters that moved.
        seconds: time from the decision to the last move.
        predicted_gain: predicted saving, as a share of the epoch time; null if it was not a matter of gain.
    """

    event: ClassVar[str] = "reconfigured"
    job: str
    why: str
    roles: tuple[str, ...]
    data_blocks_moved: int
    parameter_blocks_moved: int
    seconds: Number
    predicted_gain: float | None = None


@dataclass(frozen=True, slots=True)
class ExecutorsChangedLine(Line):
    """Written when the job has been given executors, or some were taken back.

    Attributes:
        job: name of the job.
        executors: ranks that the job may use from now on.
        source: what decided it: `executors` (the file) or `executors.schedule`.
    """

    event: ClassVar[str] = "executors-changed"
    job: str
    executors: tuple[int, ...]
    source: str


@dataclass(frozen=True, slots=True)
class JobSavedLine(Line):
    """Written when a checkpoint of a parameter-server job is complete on disk.

    Attributes:
        job: name of the job.
        epoch: number of completed epochs.
        step: number of completed steps since the start of the job; with `consistency: async`, of epochs.
        seconds: time for which the workers could not compute.
        wall_s: time of the job until now, over all starts, without what was lost after checkpoints; null: not
            recorded.
        used_s: the same in executor-seconds; null: not recorded.
    """

    event: ClassVar[str] = "job-saved"
    job: str
    epoch: int
    step: int
    seconds: Number
    wall_s: float | None = None
    used_s: float | None = None

    def reached(self) -> tuple[str, object]:
        """Return the position of the job."""
        return self.job, (self.epoch, self.step)


@dataclass(frozen=True, slots=True)
class JobDoneLine(Line):
    """Written when a parameter-server job has converged or reached its last epoch.

    Attributes:
        job: name of the job.
        epochs: number of epochs.
        detail: the stop rule that applied; text for users.
    """

    event: ClassVar[str] = "job-done"
    job: str
    epochs: int
    detail: str


@dataclass(frozen=True, slots=True)
class JobFailedLine(Line):
    """Written when a parameter-server job has failed.

    Attributes:
        job: name of the job.
        epochs: number of completed epochs.
        cause: kind of failure, one word.
        detail: what happened; text for users.
    """

    event: ClassVar[str] = "job-failed"
    job: str
    epochs: int
    cause: str
    detail: str


@dataclass(frozen=True, slots=True)
class SharingFacts(Facts):
    """Jobs that share machines.

    Attributes:
        jobs: names of the jobs.
        machines: ranks of the machines.
        predicted_s: predicted seconds of one iteration of all its jobs; null if a job was not profiled.
    """

    jobs: tuple[str, ...]
    machines: tuple[int, ...]
    predicted_s: float | None = None


@dataclass(frozen=True, slots=True)
class JobSubmittedLine(Line):
    """Written when a run has taken up a job that was submitted after its first start had begun.

    Attributes:
        job: name of the job.
        app: import path of its app.
        arrives_s: when it is to arrive, in seconds after the start of the run.
    """

    event: ClassVar[str] = "job-submitted"
    job: str
    app: str
    arrives_s: Number


@dataclass(frozen=True, slots=True)
class JobsGroupedLine(Line):
    """Written when the scheduler has changed which jobs share machines.

    Attributes:
        groups: the groups.
        waiting: jobs that wait, in order of arrival.
    """

    event: ClassVar[str] = "jobs-grouped"
    groups: tuple[SharingFacts, ...]
    waiting: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupMeasuredLine(Line):
    """Written when a group ends whose jobs have had some iterations together, but not when the run ends.

    Attributes:
        jobs: names of the jobs.
        machines: ranks of the machines.
        predicted_s: predicted seconds of one iteration of all its jobs, when the group was formed, or when
            all of them had been profiled; null if they were not.
        measured_s: seconds from one iteration to the next of its slowest job, mean of the last four to eight
            during which no job on its machines started, computed an objective or wrote a checkpoint.
    """

    event: ClassVar[str] = "group-measured"
    jobs: tuple[str, ...]
    machines: tuple[int, ...]
    predicted_s: float | None
    measured_s: Number


@dataclass(frozen=True, slots=True)
class JobPlacedLine(Line):
    """Written when a job starts on machines, or goes on there.

    Attributes:
        job: name of the job.
        machines: ranks of the machines.
        epochs: number of epochs that it has completed before.
    """

    event: ClassVar[str] = "job-placed"
    job: str
    machines: tuple[int, ...]
    epochs: int


@dataclass(frozen=True, slots=True)
class JobRestedLine(Line):
    """Written when a job has left its machines before its end.

    Attributes:
        job: name of the job.
        seconds: from the order to stop until its machines were free.
        iterations: number of measured iterations there.
        compute_s: average time of the CPU subtasks of an iteration; null if none was measured.
        network_s: average time of the network subtasks of an iteration; null if none was measured.
        period_s: average time from one iteration to the next, as in `group-measured`; null if none was
            measured.
    """

    event: ClassVar[str] = "job-rested"
    job: str
    seconds: Number
    iterations: int
    compute_s: float | None
    network_s: float | None
    period_s: float | None


@dataclass(frozen=True, slots=True)
class JobSpilledLine(Line):
    """Written when a job has left its machines, if samples of it were on their disks.

    Attributes:
        job: name of the job.
        alpha: share of its data blocks that was on disk at last.
        most_bytes: the most that its blocks took on all disks together.
        stop_s: seconds for which its turns waited for a disk, mean of its machines.
        read_s: seconds for which disks read for it, mean of its machines.
    """

    event: ClassVar[str] = "job-spilled"
    job: str
    alpha: Number
    most_bytes: int
    stop_s: Number
    read_s: Number


@dataclass(frozen=True, slots=True)
class MachinesUsedLine(Line):
    """Written at the end of a start: how busy the machines were.

    Attributes:
        machines: ranks of the machines.
        cpu: share of the time in which a CPU subtask ran, for each machine.
        network: share of the time in which a network subtask ran, for each machine.
        memory_bytes: the most that blocks, messages and caches of all jobs took at a time, for each machine.
        resident_bytes: the most memory of the machine's process beyond what it took before the first job, for
            each machine.
    """

    event: ClassVar[str] = "machines-used"
    machines: tuple[int, ...]
    cpu: tuple[float, ...]
    network: tuple[float, ...]
    memory_bytes: tuple[int, ...]
    resident_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MachinesBusyLine(Line):
    """Written while many jobs run, and at the end of a start: how busy the machines were of late.

    Two lines are at least 5 s apart, and 2 % of the time that the start has taken.

    Attributes:
        machines: ranks of the machines that have reported since the line before.
        seconds: for how long, for each machine: since the line before, or since it began.
        cpu: share of that time in which a CPU subtask ran, for each machine.
        network: share of that time in which a network subtask ran, for each machine.
    """

    event: ClassVar[str] = "machines-busy"
    machines: tuple[int, ...]
    seconds: tuple[float, ...]
    cpu: tuple[float, ...]
    network: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Stay:
    """A job was on machines for a while.

    Attributes:
        job: name of the job.
        machines: ranks of the machines.
        start_s, end_s: from when until when, on the time axis of who reads the lines.
    """

    job: str
    machines: tuple[int, ...]
    start_s: float
    end_s: float


class JobStays:
    """Collects stays from the lines read so far.

    Attributes:
        over: stays that have ended, in the order of their ends.
    """

    def __init__(self) -> None:
        self.over: list[Stay] = []
        self._here: dict[str, tuple[float, tuple[int, ...]]] = {}  # by job: since when, and where

    def take(self, now_s: float, line: Line) -> None:
        """Process the next line, at `now_s`; a start of the run comes when the one before has ended."""
        match line:
            case RunStartedLine() | RunFinishedLine():
                self._leave(now_s, list(self._here))
            case JobPlacedLine(job, machines):
                self._leave(now_s, [job])
                self._here[job] = now_s, machines
            case JobRestedLine(job) | JobDoneLine(job) | JobFailedLine(job):
                self._leave(now_s, [job])

    def until(self, now_s: float) -> list[Stay]:
        """Return all stays; those that go on end at `now_s`."""
        return [*self.over, *(Stay(job, at, since_s, now_s) for job, (since_s, at) in self._here.items())]

    def cost_by_job(self, now_s: float) -> dict[str, tuple[float, float]]:
        """Return (seconds on machines, machine-seconds) of each job until `now_s`."""
        found: dict[str, tuple[float, float]] = {}
        for stay in self.until(now_s):
            seconds, machine_s = found.get(stay.job, (0.0, 0.0))
            length_s = stay.end_s - stay.start_s
            found[stay.job] = seconds + length_s, machine_s + length_s * len(stay.machines)
        return found

    def _leave(self, now_s: float, jobs: Iterable[str]) -> None:
        for job in jobs:
            if job in self._here:
                since_s, machines = self._here.pop(job)
                self.over.append(Stay(job, machines, since_s, now_s))

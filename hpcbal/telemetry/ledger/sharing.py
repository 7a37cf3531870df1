"""Lines about many parameter-server jobs on the same machines: who shares machines with whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hpcbal.telemetry.ledger.line import Facts, Line, Number


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
            each machine; empty in ledgers of older versions.
    """

    event: ClassVar[str] = "machines-used"
    machines: tuple[int, ...]
    cpu: tuple[float, ...]
    network: tuple[float, ...]
    memory_bytes: tuple[int, ...]
    resident_bytes: tuple[int, ...] = ()

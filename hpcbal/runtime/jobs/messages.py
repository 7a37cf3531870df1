"""Messages between the scheduler of jobs and the ranks that they run on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hpcbal.comm.channel import Message
from hpcbal.policies.grouping.memory import JobMemory
from hpcbal.runtime.jobs.checkpoint import SavedJob
from hpcbal.runtime.jobs.loading import Cut, JobConfig

# ---- scheduler -> machines -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HostJob(Message):
    """To the machines of a job: make an executor for it; the job's own messages follow.

    Attributes:
        start: number of this start of a job, unique in the run; messages of the job carry it.
        config: its configuration; it may have been submitted after this start began.
        seed: of its first values and random draws.
        import_roots: directories with modules of submitted jobs.
        cut: how its samples and tables are cut.
        saved: the checkpoint from which it goes on; None: it begins.
        memory: what it needs, as estimated.
        num_machines: on which it runs.
    """

    start: int
    config: JobConfig
    seed: int
    import_roots: tuple[str, ...]
    cut: Cut
    saved: SavedJob | None
    memory: JobMemory
    num_machines: int

    @property
    def job(self) -> str:
        """Name of the job."""
        return self.config.name


@dataclass(frozen=True, slots=True)
class ForJob(Message):
    """A message of one job, in either direction."""

    start: int
    message: Message


@dataclass(frozen=True, slots=True)
class Forget(Message):
    """To all machines: a job is over, and nothing of it is needed any more."""

    job: str


@dataclass(frozen=True, slots=True)
class EndRun(Message):
    """To all machines: the run ends with this code."""

    exit_code: int


# ---- machines -> scheduler -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Left(Message):
    """The executor of this start has left the rank.

    Attributes:
        start: its number.
        hangs: whether it still computes, so that its messages may come, and its tags are in use.
    """

    start: int
    hangs: bool = False


@dataclass(frozen=True, slots=True)
class SpilledJob(Message):
    """The blocks of one start of a job on the machine's disk; part of `MachineLoad`.

    Attributes:
        start: of the job.
        blocks: of its data on the machine.
        on_disk: of them.
        num_bytes: of blocks on disk.
        stop_s: seconds for which its turns have waited for the disk so far.
        read_s: seconds that the disk has read for it so far.
    """

    start: int
    blocks: int
    on_disk: int
    num_bytes: int
    stop_s: float
    read_s: float


@dataclass(frozen=True, slots=True)
class MachineLoad(Message):
    """How long the machine's resources have been in use since it began.

    Attributes:
        cpu_s: seconds with a CPU subtask.
        network_s: seconds with a network subtask.
        wall_s: seconds altogether.
        memory_bytes: the most that jobs have held at a time.
        resident_bytes: the most memory that the process has taken since it was ready for jobs, beyond what it
            took then.
        spilled: of each job on the machine; empty if it has no disk.
    """

    cpu_s: float
    network_s: float
    wall_s: float
    memory_bytes: int
    resident_bytes: int = 0
    spilled: tuple[SpilledJob, ...] = ()

    def since(self, before: MachineLoad | None) -> MachineLoad:
        """Return the times since an earlier report, or since the machine began."""
        if before is None:
            return self
        cpu_s, network_s = self.cpu_s - before.cpu_s, self.network_s - before.network_s
        return replace(self, cpu_s=cpu_s, network_s=network_s, wall_s=self.wall_s - before.wall_s)

"""What the scheduler of many jobs and their machines say to each other."""

from __future__ import annotations

from dataclasses import dataclass

from hpcbal.comm.message import Message
from hpcbal.config import SharedJobConfig
from hpcbal.runtime.paramserver.checkpoint import SavedJob
from hpcbal.runtime.paramserver.cutting import Cut

# ---- scheduler -> machines -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HostJob(Message):
    """To the machines of a job: make an executor for it; the job's own messages follow.

    Attributes:
        start: number of this start of a job, unique in the run; messages of the job carry it.
        config: its configuration; it may have been submitted after this start began.
        import_roots: directories with modules of submitted jobs.
        cut: how its samples and tables are cut.
        saved: the checkpoint from which it goes on; None: it begins.
    """

    start: int
    config: SharedJobConfig
    import_roots: tuple[str, ...]
    cut: Cut
    saved: SavedJob | None

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
class Leave(Message):
    """To all machines: the run ends with this code."""

    exit_code: int


# ---- machines -> scheduler -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Left(Message):
    """The executor of this start has left the machine."""

    start: int


@dataclass(frozen=True, slots=True)
class MachineLoad(Message):
    """How long the machine's resources have been in use since it began.

    Attributes:
        cpu_s: seconds with a CPU subtask.
        network_s: seconds with a network subtask.
        wall_s: seconds altogether.
        memory_bytes: the most that jobs have held at a time.
    """

    cpu_s: float
    network_s: float
    wall_s: float
    memory_bytes: int

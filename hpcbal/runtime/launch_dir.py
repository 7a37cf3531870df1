"""What the ranks and the `hpcbal run` that started them tell each other: two small files."""

from __future__ import annotations

from pathlib import Path

from hpcbal import env
from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.telemetry.atomic_file import write_atomic

READY = "ready"
EXIT_CODE = "exit-code"


def _directory() -> Path | None:
    value = env.read("HPCBAL_LAUNCH_DIR")
    return None if value is None else Path(value)


def tell_ready(rank: int) -> None:
    """From now on a signal stops the ranks cleanly; before, it would have killed them."""
    directory = _directory()
    if directory is not None and rank == SCHEDULER_RANK:
        write_atomic(directory / READY, "")


def leave_exit_code(rank: int, code: int) -> int:
    """The exit code of this process.

    Where `hpcbal run` has started mpirun, rank 0 leaves the code in a file and all ranks end with 0: mpirun
    would report any other code as a crash.
    """
    directory = _directory()
    if directory is None:
        return code
    if rank == SCHEDULER_RANK:
        write_atomic(directory / EXIT_CODE, str(code))
    return 0

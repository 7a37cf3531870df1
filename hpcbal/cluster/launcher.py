"""Which launcher, if any, started this process, and how many ranks it promised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# (variable of the rank, variable of the size) per launcher; checked in this order, because mpirun inside a
# Slurm job also inherits Slurm's variables.
_VARIABLES = (
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIx", "PMIX_RANK", "PMIX_SIZE"),
    ("MVAPICH2", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PMI", "PMI_RANK", "PMI_SIZE"),
    ("jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    ("PALS", "PALS_RANKID", "PALS_SIZE"),
)


@dataclass(frozen=True, slots=True)
class Launcher:
    """What started this process.

    Attributes:
        name: name for people.
        rank: rank of this process; None if the launcher does not set it.
        size: number of processes that were started; None if the launcher does not set it.
    """

    name: str
    rank: int | None
    size: int | None


def detect_launcher(environ: Mapping[str, str]) -> Launcher | None:
    """Detect the launcher that started this process; None if there is none.

    A Slurm batch script has SLURM_PROCID too, but only a step that srun started has SLURM_STEP_ID, so that
    variable decides. A step of one task is a shell (`srun --pty bash`), because no ensemble runs on one rank.
    """
    for name, rank_variable, size_variable in _VARIABLES:
        if rank_variable in environ:
            size = environ.get(size_variable) or environ.get("SLURM_STEP_NUM_TASKS")
            return Launcher(name, _number(environ[rank_variable]), _number(size))
    if "SLURM_PROCID" in environ and "SLURM_STEP_ID" in environ:
        size = environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS")
        if size != "1":
            return Launcher("srun", _number(environ["SLURM_PROCID"]), _number(size))
    return None


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None

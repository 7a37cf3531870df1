"""Which launcher, if any, started this process, and how many ranks it promised."""

from __future__ import annotations

from collections.abc import Mapping

# (variable of the rank, variable of the size) per launcher; asked in this order, since mpirun inside a
# Slurm job also inherits Slurm's variables.
_VARIABLES = (
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIx", "PMIX_RANK", "PMIX_SIZE"),
    ("MVAPICH2", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PMI", "PMI_RANK", "PMI_SIZE"),
    ("jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    ("PALS", "PALS_RANKID", "PALS_SIZE"),
)


def detect_launcher(environ: Mapping[str, str]) -> tuple[str, int | None] | None:
    """Name of the launcher that started this process and the number of ranks it started.

    A Slurm batch script has SLURM_PROCID too, but only a step that srun started has SLURM_STEP_ID, so only
    that counts.

    Returns:
        None when no launcher did; the size is None when the launcher does not tell it.
    """
    for name, rank_variable, size_variable in _VARIABLES:
        if rank_variable in environ:
            size = environ.get(size_variable)
            if size is None and "SLURM_STEP_NUM_TASKS" in environ:
                size = environ["SLURM_STEP_NUM_TASKS"]
            return name, int(size) if size and size.isdigit() else None
    if "SLURM_PROCID" in environ and "SLURM_STEP_ID" in environ:
        size = environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS")
        return "srun", int(size) if size and size.isdigit() else None
    return None

"""The facts that launchers and batch systems put into a process's environment: rank, size, node, job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile


@dataclass(frozen=True, slots=True)
class Launcher:
    """The program that started this process, and the place that it gave to the process.

    Attributes:
        name: name for people.
        rank: rank of this process; None if the launcher does not set it, as all other numbers.
        size: number of processes that were started.
        local_rank: index of this process among those of its node, from 0.
        local_size: number of processes on this node.
        num_nodes: number of nodes on which processes were started.
    """

    name: str
    rank: int | None
    size: int | None
    local_rank: int | None = None
    local_size: int | None = None
    num_nodes: int | None = None


@dataclass(frozen=True, slots=True)
class BatchJob:
    """The job of a batch system in which this process runs.

    Attributes:
        system: `Slurm`, `PBS`, `LSF` or `Flux`.
        job_id: as its commands take it.
        array_task: index in a job array; empty outside of one.
        tasks_per_node: tasks of each node, in order; empty if the system does not say.
        components: components of a heterogeneous job of Slurm; 1 for any other job.
        walltime_s: how long it may run, in seconds; None if the environment does not say.
    """

    system: str
    job_id: str
    array_task: str = ""
    tasks_per_node: tuple[int, ...] = ()
    components: int = 1
    walltime_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Variables:
    """Names of the variables of one launcher; of several for one number the first that is set counts."""

    name: str
    rank: str
    size: tuple[str, ...] = ()
    local_rank: tuple[str, ...] = ()
    local_size: tuple[str, ...] = ()
    num_nodes: tuple[str, ...] = ()


# The first whose rank is set has started the process. Those of programs that start processes inside a step of
# another one come first, because they inherit its variables: mpirun inside a Slurm job has SLURM_PROCID too.
# PMIx comes last: jsrun, PALS and Flux may speak it, but only their own variables say how many processes.
_LAUNCHERS = (
    _Variables(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    ),
    _Variables(
        "MVAPICH2",
        "MV2_COMM_WORLD_RANK",
        ("MV2_COMM_WORLD_SIZE",),
        ("MV2_COMM_WORLD_LOCAL_RANK",),
        ("MV2_COMM_WORLD_LOCAL_SIZE",),
    ),
    _Variables(
        "jsrun",
        "JSM_NAMESPACE_RANK",
        ("JSM_NAMESPACE_SIZE",),
        ("JSM_NAMESPACE_LOCAL_RANK",),
        ("JSM_NAMESPACE_LOCAL_SIZE",),
    ),
    _Variables(
        "PALS",
        "PALS_RANKID",
        ("PALS_SIZE", "PMI_SIZE"),
        ("PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"),
        ("PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"),
    ),
    _Variables(
        "Flux", "FLUX_TASK_RANK", ("FLUX_JOB_SIZE",), ("FLUX_TASK_LOCAL_ID",), (), ("FLUX_JOB_NNODES",)
    ),
    _Variables(
        "PMI",
        "PMI_RANK",
        ("PMI_SIZE",),
        ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"),
        ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"),
    ),
    _Variables("PMIx", "PMIX_RANK", ("PMIX_SIZE",), ("PMIX_LOCAL_RANK",), ("PMIX_LOCAL_SIZE",)),
)
_OF_STEPS = ("Flux", "PMI", "PMIx")
"""A batch system sets these also for a step of one task, which is a shell: no run has one rank."""


def detect_launcher(environ: Mapping[str, str]) -> Launcher | None:
    """Return the launcher that started this process; None if there is none.

    A Slurm batch script has SLURM_PROCID too, but only a step that srun started has SLURM_STEP_ID, so that
    variable decides. A step of one task is a shell (`srun --pty bash`, or a shell of `salloc`), because no
    ensemble runs on one rank.
    """
    step = _slurm_step(environ)
    for names in _LAUNCHERS:
        if names.rank not in environ:
            continue
        rank, size = number(environ[names.rank]), _first(environ, names.size)
        namespace = environ.get("PMIX_NAMESPACE", "slurm.")
        if size is None and names.name in _OF_STEPS and namespace.startswith("slurm."):
            size = None if step is None else step.size
        if size == 1 and names.name in _OF_STEPS and _is_in_job(environ):
            continue
        is_step = step is not None and (step.rank, step.size) == (rank, size)
        return Launcher(
            names.name,
            rank,
            size,
            _first(environ, names.local_rank, step.local_rank if step is not None and is_step else None),
            _first(environ, names.local_size, step.local_size if step is not None and is_step else None),
            _first(environ, names.num_nodes, step.num_nodes if step is not None and is_step else None),
        )
    return step if step is not None and step.size != 1 and step.rank is not None else None


def _slurm_step(environ: Mapping[str, str]) -> Launcher | None:
    """Return what Slurm says of a step; None outside of one. All components of a heterogeneous step count."""
    if "SLURM_STEP_ID" not in environ and "SLURM_STEP_NUM_TASKS" not in environ:
        return None
    counts = per_node(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    node = number(environ.get("SLURM_NODEID"))
    return Launcher(
        "srun",
        number(environ.get("SLURM_PROCID")),
        _first(environ, ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
        number(environ.get("SLURM_LOCALID")),
        counts[node] if node is not None and node < len(counts) else None,
        number(environ.get("SLURM_STEP_NUM_NODES")),
    )


def _is_in_job(environ: Mapping[str, str]) -> bool:
    return "SLURM_STEP_ID" in environ or "FLUX_JOB_ID" in environ


def fault_of_world(launcher: Launcher, rank: int, size: int, library: str) -> str | None:
    """Compare the launcher's words with those of MPI; None if they agree.

    A world that is smaller than the launcher's is the fault that people meet most: each process is alone in
    a world of its own. A larger one is none: older versions of Slurm count one component of several.

    Args:
        launcher: the launcher that started this process.
        rank, size: of this process in the MPI world.
        library: name and version of the MPI library, for the message.

    Returns: a sentence that names the fault and what to do.
    """
    at_least = max(launcher.local_size or 0, 0 if launcher.rank is None else launcher.rank + 1)
    if size >= (launcher.size or at_least):
        return None
    return (
        f"{launcher.name} started {launcher.size or f'at least {at_least}'} processes, but this process is "
        f"rank {rank} in an MPI world of size {size}, so the processes cannot reach each other: mpi4py here "
        f"uses {library}, which is not the MPI of the launcher; start with the mpirun of that MPI, or with "
        "'srun --mpi=pmix' (see 'srun --mpi=list'), or rebuild mpi4py against the site's MPI"
    )


def batch_job(environ: Mapping[str, str]) -> BatchJob | None:
    """Return the batch job in which this process runs; None outside of one."""
    if job_id := environ.get("SLURM_JOB_ID"):
        index = environ.get("SLURM_ARRAY_TASK_ID", "")
        return BatchJob(
            "Slurm",
            f"{environ.get('SLURM_ARRAY_JOB_ID', job_id)}_{index}" if index else job_id,
            index,
            _tasks_of_slurm_job(environ),
            num_components(environ),
        )
    if job_id := environ.get("PBS_JOBID"):
        walltime = number(environ.get("PBS_WALLTIME"))
        index = environ.get("PBS_ARRAY_INDEX") or environ.get("PBS_ARRAYID") or ""
        return BatchJob("PBS", job_id, index, walltime_s=None if walltime is None else float(walltime))
    if job_id := environ.get("LSB_JOBID"):
        index = environ.get("LSB_JOBINDEX", "0")
        index = "" if index == "0" else index  # 0 outside of an array
        words = environ.get("LSB_MCPU_HOSTS", "").split()  # host, slots, host, slots, ...
        slots = tuple(int(word) for word in words[1::2] if word.isdigit())
        return BatchJob("LSF", f"{job_id}[{index}]" if index else job_id, index, slots)
    if job_id := environ.get("FLUX_JOB_ID"):
        return BatchJob("Flux", job_id, environ.get("FLUX_JOB_CC", ""))
    return None


def num_components(environ: Mapping[str, str]) -> int:
    """Return the number of components of a heterogeneous Slurm job; 1 for any other job."""
    return number(environ.get("SLURM_HET_SIZE")) or 1


def _tasks_of_slurm_job(environ: Mapping[str, str]) -> tuple[int, ...]:
    whole = environ.get("SLURM_TASKS_PER_NODE")
    if whole is None and num_components(environ) > 1:  # a heterogeneous job's script has them by component
        names = (f"SLURM_TASKS_PER_NODE_HET_GROUP_{group}" for group in range(num_components(environ)))
        return tuple(
            count for name in takewhile(environ.__contains__, names) for count in per_node(environ[name])
        )
    return per_node(whole or "")


_COUNT = re.compile(r"(\d{1,9})(?:\(x(\d{1,5})\))?")


def per_node(text: str) -> tuple[int, ...]:
    """Return the numbers of Slurm's short form: `2(x3),1` is (2, 2, 2, 1); empty for other words."""
    counts: list[int] = []
    for part in text.split(","):
        found = _COUNT.fullmatch(part.strip())
        if found is None:
            return ()
        counts += [int(found[1])] * int(found[2] or 1)
    return tuple(counts)


def number(text: str | None) -> int | None:
    """Return the number that a variable holds, 0 or more; None if it holds something else."""
    return int(text) if text and len(text) < 19 and text.isascii() and text.isdigit() else None


def _first(environ: Mapping[str, str], names: tuple[str, ...], otherwise: int | None = None) -> int | None:
    found = (number(environ.get(name)) for name in names)
    return next((value for value in found if value is not None), otherwise)

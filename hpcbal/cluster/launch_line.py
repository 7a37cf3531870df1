"""How ranks are started: the launcher's part of the command, and whether cores suffice for its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcbal.cluster.roles import Roles
from hpcbal.cluster.started import batch_job, num_components
from hpcbal.errors import ClusterError

# All ranks exit with 75 when the job is to be run again; the first one must not kill the others.
# If a rank dies before all have met in MPI, nothing else ends those that wait for it.
# The environment is that of the script, even in a job that was submitted with `--export=NONE`.
_SRUN_OPTIONS = ("--mpi=pmix", "--kill-on-bad-exit=0", "--wait=120", "--export=ALL")


@dataclass(frozen=True, slots=True)
class RanksToStart:
    """Numbers of nodes, ranks, cores and GPUs for a launcher.

    Attributes:
        num_nodes: number of nodes, >= 1.
        per_node: ranks on each node, >= 1.
        cores_per_rank: what Slurm calls CPUs per task; None: the launcher's default.
        gpus_per_node: as Slurm writes it, such as `4` or `a100:4`; empty: none.
    """

    num_nodes: int
    per_node: int
    cores_per_rank: int | None = None
    gpus_per_node: str = ""

    def srun(self) -> list[str]:
        """The words of the `srun` line.

        It repeats what the job has requested, because Slurm since 22.05 does not pass the cores per task on.
        """
        words = ["srun", f"--nodes={self.num_nodes}", f"--ntasks-per-node={self.per_node}"]
        if self.cores_per_rank is not None:
            words.append(f"--cpus-per-task={self.cores_per_rank}")
        if self.gpus_per_node:
            words.append(f"--gpus-per-node={self.gpus_per_node}")
        return [*words, *_SRUN_OPTIONS]

    def mpirun(self) -> list[str]:
        """The words of Open MPI's `mpirun` line; hpcbal itself divides a node's cores and GPUs."""
        total = str(self.num_nodes * self.per_node)
        by_node = ["--map-by", f"ppr:{self.per_node}:node"] if self.num_nodes > 1 else []
        return ["mpirun", "-n", total, *by_node, "--bind-to", "none"]


@dataclass(frozen=True, slots=True)
class ComponentsToStart:
    """All components of a heterogeneous Slurm job, as one step: their ranks share one MPI world.

    Each component brings its own number of nodes, tasks and GPUs.

    Attributes:
        num_components: components of the job, >= 2.
        cores_per_rank: CPUs per task, the same in all components; None: the default of Slurm.
    """

    num_components: int
    cores_per_rank: int | None = None

    def srun(self) -> list[str]:
        """The words of the `srun` line."""
        words = ["srun", f"--het-group=0-{self.num_components - 1}"]
        if self.cores_per_rank is not None:
            words.append(f"--cpus-per-task={self.cores_per_rank}")
        return [*words, *_SRUN_OPTIONS]

    def mpirun(self) -> list[str]:
        """Refuse: `mpirun` finds no nodes in such a job, because Slurm names them by component."""
        raise ClusterError(
            f"this is a heterogeneous job of {self.num_components} components, whose nodes mpirun does not "
            "find; start the ranks with srun, or request all nodes as one component"
        )


def ranks_of_slurm_job(environ: Mapping[str, str]) -> RanksToStart | ComponentsToStart:
    """Read the request of a Slurm job from the variables of its batch script.

    Raises:
        ClusterError: outside of a job, if the nodes do not all get the same number of ranks, or if the
            components of a heterogeneous job ask for different numbers of cores per task.
    """
    components = num_components(environ)
    if components > 1:
        return ComponentsToStart(components, _cores_of_components(environ, components))
    nodes = environ.get("SLURM_JOB_NUM_NODES", "")
    if not nodes.isdigit():
        raise ClusterError(
            "SLURM_JOB_NUM_NODES is not set, so this is no Slurm job; 'hpcbal launcher' is for job scripts, "
            "and 'hpcbal plan' shows the launcher's line for any number of nodes"
        )
    num_nodes = int(nodes)
    per_node, total = environ.get("SLURM_NTASKS_PER_NODE", ""), environ.get("SLURM_NTASKS", "")
    if not per_node.isdigit():
        if not total.isdigit() or int(total) % num_nodes:
            job = batch_job(environ)
            counts = "" if job is None or not job.tasks_per_node else f" ({_listed(job.tasks_per_node)})"
            raise ClusterError(
                f"the job has {total or 'no'} tasks on {num_nodes} nodes{counts}, but every node needs as "
                "many as the others; request them with --ntasks-per-node"
            )
        per_node = str(int(total) // num_nodes)
    cores = environ.get("SLURM_CPUS_PER_TASK", "")
    gpus = environ.get("SLURM_GPUS_PER_NODE") or environ.get("SLURM_GPUS_ON_NODE", "")  # or by --gres
    return RanksToStart(
        num_nodes, int(per_node), int(cores) if cores.isdigit() else None, "" if gpus == "0" else gpus
    )


def _cores_of_components(environ: Mapping[str, str], components: int) -> int | None:
    """The CPUs per task of all components, which one line of `srun` can only give to all of them."""
    asked = {environ.get(f"SLURM_CPUS_PER_TASK_HET_GROUP_{index}", "") for index in range(components)}
    if len(asked) > 1:
        shown = ", ".join(sorted(cores or "none" for cores in asked))
        raise ClusterError(
            f"the {components} components of this heterogeneous job ask for different --cpus-per-task "
            f"({shown}); request the same for all of them"
        )
    (cores,) = asked
    return int(cores) if cores.isdigit() else None


def _listed(counts: Sequence[int]) -> str:
    shown = ", ".join(str(count) for count in counts[:8])
    return shown if len(counts) <= 8 else f"{shown}, ..."


MOST_RANKS_PER_CORE = 4
"""A few ranks can share a core, as in the quick start on two cores. Far more only wait for each other."""


CORES_TO_SET_ASIDE = 8
"""On machines with this many cores or more, preprocessors get cores of their own. With fewer cores that would
cost more than it brings, because most preprocessors are busy for a small part of the time."""


def slots_on_cores(num_cores: int, num_preprocessors: int, most_useful: int | None = None) -> int:
    """Number of trainers for a machine without GPUs: one per core, as far as there is work for them.

    With fewer trainers than cores, each trainer gets several threads.

    Args:
        num_cores: cores that may be used, >= 1.
        num_preprocessors: preprocessors on the machine, >= 1.
        most_useful: no more trainers than this ever work at the same time; None: no limit.
    """
    free = num_cores - num_preprocessors if num_cores >= CORES_TO_SET_ASIDE else num_cores
    return max(1, free if most_useful is None else min(free, most_useful))


def crowding(num_ranks: int, num_cores: int) -> str | None:
    """Describe a host with far more busy ranks than cores; None if there is nothing to say.

    Args:
        num_ranks: ranks of the host that compute: trainers and preprocessors.
        num_cores: cores that they may use together; 0 if unknown.
    """
    if not num_cores or num_ranks <= MOST_RANKS_PER_CORE * num_cores:
        return None
    cores = "1 core" if num_cores == 1 else f"{num_cores} cores"
    return (
        f"{num_ranks} trainers and preprocessors share {cores} and will mostly wait for each other; lower "
        "slots.per_node, use more nodes, or request more cores for each rank"
    )


def crowded_hosts(roles: Roles, *, emulated: bool) -> list[str]:
    """Describe each host with far more busy ranks than cores.

    Args:
        emulated: whether the trainers sleep for most of a step.
    """
    found = {host: crowding(*counts) for host, counts in _busy_ranks(roles, emulated=emulated).items()}
    return [f"{host}: {text}" for host, text in found.items() if text is not None]


def slots_share_cores(roles: Roles, *, emulated: bool) -> bool:
    """Whether slots are cores, and a host has fewer of them than busy ranks.

    A trainer group gains little from a second slot then: both compute on cores that other ranks need too.

    Args:
        emulated: as for `crowded_hosts`.
    """
    if emulated or any(info.num_gpus for info in roles.ranks):
        return False
    counts = _busy_ranks(roles, emulated=False).values()
    return any(0 < num_cores < num_ranks for num_ranks, num_cores in counts)


def _busy_ranks(roles: Roles, *, emulated: bool) -> dict[str, tuple[int, int]]:
    """The number of ranks that compute, and of cores, by host."""
    busy = {*roles.preprocessor_ranks, *(() if emulated else roles.trainer_ranks)}
    counts: dict[str, tuple[int, int]] = {}
    for info in roles.ranks:
        num_ranks, num_cores = counts.get(info.host, (0, 0))
        # "Nodes" that are parts of one machine share its cores.
        counts[info.host] = num_ranks + (info.rank in busy), max(num_cores, info.num_cores)
    return counts

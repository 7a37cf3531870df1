"""The launcher's part of the command that starts a run: `plan` prints it, and the job scripts use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpcbal.errors import ClusterError

# All ranks exit with 75 when the job is to be run again; the first one must not kill the others.
# The environment is that of the script, even in a job that was submitted with `--export=NONE`.
_SRUN_OPTIONS = ("--mpi=pmix", "--kill-on-bad-exit=0", "--export=ALL")


@dataclass(frozen=True, slots=True)
class RanksToStart:
    """What a launcher must be given.

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


def ranks_of_slurm_job(environ: Mapping[str, str]) -> RanksToStart:
    """What a Slurm job has requested, from the variables of its batch script.

    Raises:
        ClusterError: outside of a job, in a heterogeneous one, or if the nodes do not all get the same number
            of ranks.
    """
    components = environ.get("SLURM_HET_SIZE", "")
    if components.isdigit() and int(components) > 1:
        raise ClusterError(
            f"this is a heterogeneous job of {components} components, and the line would start ranks in the "
            "first one only; request all nodes as one component, with the same --ntasks-per-node"
        )
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
            raise ClusterError(
                f"the job has {total or 'no'} tasks on {num_nodes} nodes, but every node needs as many as "
                "the others; request them with --ntasks-per-node"
            )
        per_node = str(int(total) // num_nodes)
    cores = environ.get("SLURM_CPUS_PER_TASK", "")
    gpus = environ.get("SLURM_GPUS_PER_NODE") or environ.get("SLURM_GPUS_ON_NODE", "")  # or by --gres
    return RanksToStart(
        num_nodes, int(per_node), int(cores) if cores.isdigit() else None, "" if gpus == "0" else gpus
    )

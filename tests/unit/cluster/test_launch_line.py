"""The launcher's line of a job repeats what the job has requested."""

from __future__ import annotations

import pytest

from hpcbal.cluster.launch_line import ComponentsToStart, RanksToStart, ranks_of_slurm_job
from hpcbal.errors import ClusterError

JOB = {"SLURM_JOB_NUM_NODES": "4", "SLURM_NTASKS": "24", "SLURM_NTASKS_PER_NODE": "6"}


@pytest.mark.parametrize(
    ("more", "ranks"),
    [
        ({}, RanksToStart(4, 6)),
        ({"SLURM_CPUS_PER_TASK": "8", "SLURM_GPUS_PER_NODE": "a100:4"}, RanksToStart(4, 6, 8, "a100:4")),
        ({"SLURM_GPUS_ON_NODE": "2"}, RanksToStart(4, 6, None, "2")),
        ({"SLURM_GPUS_ON_NODE": "0"}, RanksToStart(4, 6)),
        ({"SLURM_NTASKS_PER_NODE": ""}, RanksToStart(4, 6)),
    ],
)
def test_a_job_says_what_it_has_requested(more: dict[str, str], ranks: RanksToStart) -> None:
    assert ranks_of_slurm_job(JOB | more) == ranks


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({}, "this is no Slurm job.*hpcbal plan"),
        ({"SLURM_JOB_NUM_NODES": "4", "SLURM_NTASKS": "23"}, "23 tasks on 4 nodes.*--ntasks-per-node"),
        ({"SLURM_JOB_NUM_NODES": "4"}, "no tasks on 4 nodes"),
        (
            {
                "SLURM_JOB_ID": "1",
                "SLURM_JOB_NUM_NODES": "4",
                "SLURM_NTASKS": "7",
                "SLURM_TASKS_PER_NODE": "2(x3),1",
            },
            r"7 tasks on 4 nodes \(2, 2, 2, 1\), but",
        ),
        (
            {"SLURM_HET_SIZE": "2", "SLURM_CPUS_PER_TASK_HET_GROUP_1": "4"},
            r"2 components .* different --cpus-per-task \(4, none\)",
        ),
    ],
)
def test_without_the_same_number_of_ranks_on_each_node_there_is_no_line(
    environ: dict[str, str], reason: str
) -> None:
    with pytest.raises(ClusterError, match=reason):
        ranks_of_slurm_job(environ)


def test_srun_gets_cores_gpus_and_pmix() -> None:
    options = "--cpus-per-task=8 --gpus-per-node=4 --mpi=pmix --kill-on-bad-exit=0 --wait=120 --export=ALL"
    assert " ".join(RanksToStart(4, 6, 8, "4").srun()) == f"srun --nodes=4 --ntasks-per-node=6 {options}"


@pytest.mark.parametrize(
    ("num_nodes", "line"),
    [(1, "mpirun -n 6 --bind-to none"), (4, "mpirun -n 24 --map-by ppr:6:node --bind-to none")],
)
def test_mpirun_places_the_ranks_and_leaves_the_cores_to_hpcbal(num_nodes: int, line: str) -> None:
    assert " ".join(RanksToStart(num_nodes, 6, 8).mpirun()) == line


def test_the_components_of_a_heterogeneous_job_are_one_step() -> None:
    both = {f"SLURM_CPUS_PER_TASK_HET_GROUP_{index}": "8" for index in range(2)}
    for more, cores in (({}, ""), (both, " --cpus-per-task=8")):
        ranks = ranks_of_slurm_job({"SLURM_HET_SIZE": "2", **more})
        assert isinstance(ranks, ComponentsToStart)
        options = "--mpi=pmix --kill-on-bad-exit=0 --wait=120 --export=ALL"
        assert " ".join(ranks.srun()) == f"srun --het-group=0-1{cores} {options}"
        with pytest.raises(ClusterError, match="2 components, whose nodes mpirun does not find; start"):
            ranks.mpirun()

"""Launchers and batch systems are known by their variables alone; the environments were recorded.

Open MPI 5.0 and Slurm with its plugins pmix, pmi2 and none, arrays, uneven nodes and two components were
recorded from real ones; MPICH, MVAPICH2, PALS, jsrun, PBS, LSF and Flux are as manuals and scripts of sites
show them.
"""

from __future__ import annotations

import pytest

from hpcbal.cluster.started import BatchJob, Launcher, batch_job, detect_launcher, fault_of_world, per_node
from hpcbal.env import VARIABLES

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "1",
    "PMIX_NAMESPACE": "prterun-vm-13907@1",
}
SCRIPT = {
    "SLURM_JOB_ID": "2",
    "SLURM_PROCID": "0",
    "SLURM_NODEID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "5",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_TASKS_PER_NODE": "3,1(x2)",
}
UNEVEN = {
    **SCRIPT,
    "SLURM_PROCID": "4",
    "SLURM_NODEID": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_TASKS_PER_NODE": "3,1(x2)",
}
UNEVEN_PMIX = {**UNEVEN, "PMIX_RANK": "4", "PMIX_NAMESPACE": "slurm.pmix.2.0"}
TWO_COMPONENTS = {
    "SLURM_JOB_ID": "7",
    "SLURM_HET_SIZE": "2",
    "PMIX_RANK": "3",
    "PMIX_NAMESPACE": "slurm.pmix.7.0",
    "SLURM_PROCID": "3",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "6",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2,3,1",
    "SLURM_TASKS_PER_NODE": "2,3,1",
}
SHELL_OF_SALLOC = {
    "SLURM_JOB_ID": "14",
    "SLURM_PROCID": "0",
    "SLURM_NTASKS": "1",
    "SLURM_STEP_ID": "4294967290",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
}
PMI2 = {**UNEVEN, "PMI_RANK": "4", "PMI_SIZE": "5", "PMI_JOBID": "4.0"}


@pytest.mark.parametrize(
    ("environ", "launcher"),
    [
        ({}, None),
        ({"PATH": "/bin"}, None),
        (OPEN_MPI, Launcher("Open MPI", 1, 2, 1, 2)),
        ({**SCRIPT, **OPEN_MPI}, Launcher("Open MPI", 1, 2, 1, 2)),
        ({**UNEVEN, **OPEN_MPI}, Launcher("Open MPI", 1, 2, 1, 2)),  # SLURM_PROCID is that of its daemon
        ({**SHELL_OF_SALLOC, **OPEN_MPI}, Launcher("Open MPI", 1, 2, 1, 2)),
        (SCRIPT, None),
        (SHELL_OF_SALLOC, None),
        ({**SHELL_OF_SALLOC, "PMIX_RANK": "0", "PMIX_NAMESPACE": "slurm.pmix.14.0"}, None),
        ({**SHELL_OF_SALLOC, "PMI_RANK": "0", "PMI_SIZE": "1"}, None),
        (UNEVEN, Launcher("srun", 4, 5, 0, 1, 3)),
        (UNEVEN_PMIX, Launcher("PMIx", 4, 5, 0, 1, 3)),
        (PMI2, Launcher("PMI", 4, 5, 0, 1, 3)),
        (TWO_COMPONENTS, Launcher("PMIx", 3, 6, 1, 3, 3)),
        ({**SCRIPT, "SLURM_STEP_ID": "0"}, Launcher("srun", 0, 5, 0)),  # Slurm before it had STEP_NUM_TASKS
        ({"PMIX_RANK": "0"}, Launcher("PMIx", 0, None)),
        ({"PMIX_RANK": "0", "SLURM_STEP_NUM_TASKS": "6"}, Launcher("PMIx", 0, 6)),
        # prterun inside a Slurm job: the step is that of its daemons.
        ({**UNEVEN, "PMIX_RANK": "9", "PMIX_NAMESPACE": "prterun-n1-7@1"}, Launcher("PMIx", 9, None)),
        (
            {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
            Launcher("PMI", 1, 4, 1, 2),
        ),
        (
            {
                "MV2_COMM_WORLD_RANK": "1",
                "MV2_COMM_WORLD_SIZE": "4",
                "MV2_COMM_WORLD_LOCAL_RANK": "0",
                "MV2_COMM_WORLD_LOCAL_SIZE": "1",
            },
            Launcher("MVAPICH2", 1, 4, 0, 1),
        ),
        (
            {
                "JSM_NAMESPACE_RANK": "2",
                "JSM_NAMESPACE_SIZE": "12",
                "JSM_NAMESPACE_LOCAL_RANK": "2",
                "JSM_NAMESPACE_LOCAL_SIZE": "6",
                "PMIX_RANK": "2",
            },
            Launcher("jsrun", 2, 12, 2, 6),
        ),
        (
            {"PALS_RANKID": "2", "PALS_LOCAL_RANKID": "2", "PALS_LOCAL_SIZE": "12", "PMIX_RANK": "2"},
            Launcher("PALS", 2, None, 2, 12),
        ),
        (
            {
                "PALS_RANKID": "2",
                "PMI_RANK": "2",
                "PMI_SIZE": "24",
                "PMI_LOCAL_RANK": "2",
                "PMI_LOCAL_SIZE": "12",
            },
            Launcher("PALS", 2, 24, 2, 12),
        ),
        (
            {
                "FLUX_TASK_RANK": "5",
                "FLUX_JOB_SIZE": "8",
                "FLUX_TASK_LOCAL_ID": "1",
                "FLUX_JOB_NNODES": "2",
                "FLUX_JOB_ID": "f1",
                "PMI_RANK": "5",
                "PMI_SIZE": "8",
            },
            Launcher("Flux", 5, 8, 1, None, 2),
        ),
        ({"FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "1", "FLUX_JOB_ID": "f1"}, None),  # a shell
        ({"PMI_RANK": "x", "PMI_SIZE": ""}, Launcher("PMI", None, None)),
    ],
)
def test_each_launcher_is_known_by_its_variables(environ: dict[str, str], launcher: Launcher | None) -> None:
    assert detect_launcher(environ) == launcher


@pytest.mark.parametrize(
    ("environ", "job"),
    [
        ({}, None),
        (SCRIPT, BatchJob("Slurm", "2", tasks_per_node=(3, 1, 1))),
        (
            {"SLURM_JOB_ID": "15", "SLURM_ARRAY_JOB_ID": "13", "SLURM_ARRAY_TASK_ID": "7"},
            BatchJob("Slurm", "13_7", "7"),
        ),
        (TWO_COMPONENTS, BatchJob("Slurm", "7", tasks_per_node=(2, 3, 1), components=2)),
        (
            {
                "SLURM_JOB_ID": "5",
                "SLURM_HET_SIZE": "2",
                "SLURM_TASKS_PER_NODE_HET_GROUP_0": "2",
                "SLURM_TASKS_PER_NODE_HET_GROUP_1": "3,1",
            },
            BatchJob("Slurm", "5", tasks_per_node=(2, 3, 1), components=2),
        ),
        (
            {"SLURM_JOB_ID": "5", "SLURM_HET_SIZE": "99999999999"},
            BatchJob("Slurm", "5", components=99999999999),
        ),
        (
            {"PBS_JOBID": "12[4].pbs", "PBS_ARRAY_INDEX": "4", "PBS_WALLTIME": "600"},
            BatchJob("PBS", "12[4].pbs", "4", walltime_s=600.0),
        ),
        (
            {"LSB_JOBID": "9", "LSB_JOBINDEX": "0", "LSB_MCPU_HOSTS": "a 1 b 42 c 42"},
            BatchJob("LSF", "9", tasks_per_node=(1, 42, 42)),
        ),
        ({"LSB_JOBID": "9", "LSB_JOBINDEX": "3"}, BatchJob("LSF", "9[3]", "3")),
        ({"FLUX_JOB_ID": "f2q", "FLUX_JOB_CC": "2"}, BatchJob("Flux", "f2q", "2")),
    ],
)
def test_each_batch_system_is_known_by_its_variables(environ: dict[str, str], job: BatchJob | None) -> None:
    assert batch_job(environ) == job


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("2(x3),1", (2, 2, 2, 1)),
        ("24", (24,)),
        ("2,3,1", (2, 3, 1)),
        ("", ()),
        ("2(x3", ()),
        ("many", ()),
    ],
)
def test_slurms_short_form_is_read(text: str, counts: tuple[int, ...]) -> None:
    assert per_node(text) == counts


@pytest.mark.parametrize(
    ("launcher", "rank", "size", "count"),
    [
        (Launcher("Open MPI", 0, 8), 0, 1, "8 processes"),
        (Launcher("Open MPI", 3, 8), 0, 1, "8 processes"),
        (Launcher("PMIx", 3, None), 0, 1, "at least 4 processes"),
        (Launcher("PALS", 0, None, 0, 12), 0, 1, "at least 12 processes"),
    ],
)
def test_processes_that_are_alone_in_worlds_of_their_own_are_a_fault(
    launcher: Launcher, rank: int, size: int, count: str
) -> None:
    fault = fault_of_world(launcher, rank, size, "MPICH 4.1")
    assert fault is not None
    assert f"started {count}, but this process is rank 0 in an MPI world of size 1" in fault
    assert "mpi4py here uses MPICH 4.1" in fault


@pytest.mark.parametrize(
    ("launcher", "size"),
    [
        (Launcher("Open MPI", 0, 8), 8),
        (Launcher("PMIx", 0, None), 1),  # nobody says
        (Launcher("PALS", 1, None, 1, 2), 24),
        (Launcher("PMIx", 0, 4, 0, 4, 1), 6),  # one of two components
    ],
)
def test_a_world_that_holds_all_processes_is_none(launcher: Launcher, size: int) -> None:
    assert fault_of_world(launcher, 0, size, "MPICH 4.1") is None


def test_every_variable_that_is_read_is_in_the_table() -> None:
    asked = set()

    class Environment(dict):  # type: ignore[type-arg]
        def __contains__(self, name: object) -> bool:
            asked.add(name)
            return super().__contains__(name)

        def get(self, name: str, default: object = None) -> object:
            asked.add(name)
            return super().get(name, default)

    detect_launcher(Environment())
    for name in ("OMPI_COMM_WORLD_RANK", "PALS_RANKID", "FLUX_TASK_RANK", "PMI_RANK", "SLURM_STEP_ID"):
        detect_launcher(Environment({name: "0"}))
    for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID"):
        batch_job(Environment({name: "1"}))
    assert len(asked) > 40
    assert asked - set(VARIABLES) == set()

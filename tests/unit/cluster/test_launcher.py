"""Which launcher started a process, from its environment alone."""

from __future__ import annotations

import pytest

from hpcbal.cluster.launch_line import Launcher, detect_launcher
from hpcbal.env import VARIABLES


@pytest.mark.parametrize(
    ("environ", "launcher"),
    [
        ({}, None),
        ({"PATH": "/bin"}, None),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"}, Launcher("Open MPI", 3, 8)),
        ({"PMIX_RANK": "0"}, Launcher("PMIx", 0, None)),
        ({"PMIX_RANK": "0", "SLURM_STEP_NUM_TASKS": "6"}, Launcher("PMIx", 0, 6)),
        ({"PMI_RANK": "1", "PMI_SIZE": "4"}, Launcher("PMI", 1, 4)),
        ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "4"}, Launcher("MVAPICH2", 1, 4)),
        ({"JSM_NAMESPACE_RANK": "2", "JSM_NAMESPACE_SIZE": "12"}, Launcher("jsrun", 2, 12)),
        ({"PALS_RANKID": "2", "PALS_SIZE": "12"}, Launcher("PALS", 2, 12)),
        ({"PMI_RANK": "x", "PMI_SIZE": ""}, Launcher("PMI", None, None)),
    ],
)
def test_each_launcher_is_known_by_its_variables(environ: dict[str, str], launcher: Launcher | None):
    assert detect_launcher(environ) == launcher


def test_mpirun_inside_a_slurm_job_is_open_mpi():
    slurm = {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"}
    ompi = {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "6"}
    assert detect_launcher({**slurm, **ompi}) == Launcher("Open MPI", 5, 6)


def test_a_batch_script_is_not_a_launch_and_a_step_of_srun_is():
    script = {"SLURM_PROCID": "0", "SLURM_NTASKS": "6"}
    assert detect_launcher(script) is None
    assert detect_launcher({**script, "SLURM_STEP_ID": "0"}) == Launcher("srun", 0, 6)
    set_by_step = {**script, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}
    assert detect_launcher(set_by_step) == Launcher("srun", 0, 4)


def test_an_interactive_shell_in_a_job_is_not_a_launch():
    shell = {"SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}
    assert detect_launcher(shell) is None


def test_every_variable_that_is_read_is_in_the_table():
    asked = set()

    class Environment(dict):  # type: ignore[type-arg]
        def __contains__(self, name: object) -> bool:
            asked.add(name)
            return super().__contains__(name)

    detect_launcher(Environment())
    assert asked
    assert set(VARIABLES) >= asked

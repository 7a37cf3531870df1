"""The engine of the parameter servers over real ranks."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("num_ranks", [3])
def test_frames_arrive_whole_and_in_order(mpi_run, num_ranks: int):
    done = mpi_run(num_ranks, "paramserver_transport.py", env={"PYTHONWARNINGS": "error"})
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stdout + done.stderr


def test_a_job_whose_blocks_move_trains_what_one_process_does(mpi_run):
    done = mpi_run(4, "paramserver_moves.py", env={"PYTHONWARNINGS": "error"})
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stdout + done.stderr


def test_every_update_is_applied_once_while_blocks_of_large_tables_move(mpi_run):
    done = mpi_run(5, "paramserver_ledger.py", env={"PYTHONWARNINGS": "error"})
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stdout + done.stderr

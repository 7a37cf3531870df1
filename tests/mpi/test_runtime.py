"""The runtime's own means of talking, waiting and ending, over real ranks."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_messages_and_patient_collectives(mpi_run, num_ranks: int):
    done = mpi_run(num_ranks, "runtime_channel.py", env={"PYTHONWARNINGS": "error"})
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stdout + done.stderr


@pytest.mark.parametrize(("what", "code"), [("nothing", 0), ("ours", 2), ("bug", 1)])
def test_a_rank_that_cannot_continue_ends_the_job_and_it_alone_says_why(mpi_run, what: str, code: int):
    done = mpi_run(3, "runtime_ending.py", what)
    assert done.returncode == code, done.stdout + done.stderr
    assert "rank 0 saw" not in done.stderr
    assert "rank 2 saw" not in done.stderr
    if what == "ours":
        assert done.stderr.count("disk: full") == 1, done.stderr
        assert "hpcbal: rank 1 on " in done.stderr
        assert "Traceback" not in done.stderr
    if what == "bug":
        assert "ZeroDivisionError: a bug" in done.stderr

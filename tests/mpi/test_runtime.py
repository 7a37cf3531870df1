"""The runtime's own means of talking, waiting and ending, over real ranks."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.mpi


def test_messages_patient_collectives_and_an_end_without_trouble(mpi_run):
    done = mpi_run(4, "runtime_channel.py", env={"PYTHONWARNINGS": "error"})
    passed = [f"passed {case}" for case in ("1 ranks", "2 ranks", "4 ranks", "ending")]
    assert (done.returncode, done.stdout.splitlines()) == (0, passed), done.stdout + done.stderr


@pytest.mark.parametrize(("what", "code"), [("ours", 2), ("bug", 1)])
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

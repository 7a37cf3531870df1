"""The shared stream over real ranks: every reader gets every sample, once, in order, from few reads."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.mpi

CASES = (
    "stream 1x1",
    "stream speeds",
    "stream three producers",
    "stream ragged",
    "stream three nodes",
    "stream ragged nodes",
    "stream large messages",
    "stream inside a pass",
    "stream beside other work",
    "limits idle_readers_hold_all_producers_back",
    "limits a_reader_that_leaves_frees_its_slots",
    "limits a_stream_that_all_have_left_stands_still",
    "limits wrong_reads_are_errors",
    "limits memory_that_is_not_there_is_an_error_on_all_ranks",
    "limits recycled_memory_is_used",
    "restarts three nodes",
    "restarts one node trains",
    "restarts large messages",
)


@pytest.fixture(scope="module")
def done(mpi_run: Callable[..., subprocess.CompletedProcess[str]]) -> subprocess.CompletedProcess[str]:
    """One start of ranks serves all cases."""
    return mpi_run(7, "dataplane_cases.py", timeout_s=200, env={"PYTHONWARNINGS": "error"})


@pytest.mark.parametrize("case", CASES)
def test_the_stream(done: subprocess.CompletedProcess[str], case: str) -> None:
    assert f"passed {case}" in done.stdout.splitlines(), done.stdout + done.stderr


def test_no_case_is_left_out(done: subprocess.CompletedProcess[str]) -> None:
    assert (done.returncode, len(done.stdout.splitlines())) == (0, len(CASES)), done.stdout + done.stderr

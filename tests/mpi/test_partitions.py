"""Partitioned data over real ranks: samples move while all keep drawing, and none is lost or doubled."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.mpi

CASES = [
    "under_load arrays",
    "under_load bytes",
    "undone at once",
    "undone half-way",
    "undone at the end",
    "stopped among labels",
    "failed on one rank",
]


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_samples_move_under_load(
    mpi_run: Callable[..., subprocess.CompletedProcess[str]], num_ranks: int
) -> None:
    done = mpi_run(num_ranks, "partition_cases.py", timeout_s=120)
    passed = [line.removeprefix("passed ") for line in done.stdout.splitlines() if line.startswith("passed")]
    assert (done.returncode, passed) == (0, CASES), done.stdout + done.stderr

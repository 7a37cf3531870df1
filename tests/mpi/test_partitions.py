"""Partitioned data over real ranks: samples move while all keep drawing, and none is lost or doubled."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.mpi


def test_samples_move_under_load(mpi_run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """Two ranks and four, whose messages hold some samples or many."""
    done = mpi_run(4, "partition_cases.py", timeout_s=200)
    passed = [f"passed {ranks} ranks, {size} bytes" for ranks in (2, 4) for size in (2000, 2**20)]
    assert (done.returncode, done.stdout.splitlines()) == (0, passed), done.stdout + done.stderr

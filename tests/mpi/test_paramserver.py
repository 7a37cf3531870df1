"""The engine of the parameter servers over real ranks."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from paramserver_apps import APPS

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module")
def done(mpi_run: Callable[..., subprocess.CompletedProcess[str]]) -> subprocess.CompletedProcess[str]:
    """One start of ranks serves all cases."""
    return mpi_run(5, "paramserver_cases.py", timeout_s=120, env={"PYTHONWARNINGS": "error"})


@pytest.mark.parametrize(
    "case",
    [
        "frames",  # arrive whole and in order
        *(f"moves of {name}" for name in APPS),  # while blocks move, a job trains what one process does
        *(f"ledger {mode}" for mode in ("sync", "stale", "async")),  # every update is applied once
    ],
)
def test_the_engine(done: subprocess.CompletedProcess[str], case: str) -> None:
    assert f"passed {case}" in done.stdout.splitlines(), done.stdout + done.stderr

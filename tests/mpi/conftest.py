"""Fixtures of the MPI tests: `mpi_run` starts a program under mpirun."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

RunMpi = Callable[..., subprocess.CompletedProcess[str]]


def _load_launch() -> ModuleType:
    """Load launch.py by path: with --import-mode=importlib the tests' folder is not on sys.path."""
    path = Path(__file__).with_name("launch.py")
    spec = importlib.util.spec_from_file_location("hpcbal_tests_mpi_launch", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


_launch = _load_launch()


@pytest.fixture(scope="session")
def mpi_run() -> RunMpi:
    """The function `run_mpi(num_ranks, program, *args, timeout_s=60, env=None)` of launch.py."""
    run_mpi: RunMpi = _launch.run_mpi
    return run_mpi

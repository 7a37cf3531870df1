"""How benches start `hpcbal` and ranks of their own: environment, launcher, and a run with its ledger."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from hpcbal.telemetry.ledger.codec import Entry
from hpcbal.telemetry.ledger.file import read_ledger

HERE = Path(__file__).resolve().parents[1]
"""The folder of the benches."""

MPI_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_osc": "^ucx",
    "OMPI_MCA_btl": "^ofi",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
"""For a plain mpirun in benches and tests: allow more ranks than cores and any user, and silence errors that
Open MPI 5's wheel prints when windows are created. Open MPI 4 ignores the PRTE variable. `hpcbal run` sets
what it needs itself (hpcbal/runtime/launch.py)."""


def environment(**more: str) -> dict[str, str]:
    """Environment of a child that imports the `hpcbal` beside this folder, and models and data from it.

    What its runs take says nothing about those of the user.
    """
    paths = [str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")]
    own = {"PYTHONPATH": os.pathsep.join(path for path in paths if path), "HPCBAL_CALIBRATION": os.devnull}
    return {**os.environ, **own, **more}


def mpirun() -> list[str]:
    """The launcher of this Python's mpi4py; otherwise the one on PATH."""
    beside = Path(sys.executable).parent
    found = shutil.which("mpirun", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise SystemExit("mpirun is neither beside this Python nor on PATH; install an MPI first")
    return [found, "--oversubscribe"]


def train(
    config: Mapping[str, Any],
    folder: Path,
    num_ranks: int | None = None,
    codes: Sequence[int] = (0,),
    environ: Mapping[str, str] = MappingProxyType({}),
) -> list[Entry]:
    """Do a run and return its ledger.

    Args:
        config: with an `output.dir`.
        folder: receives the config as run.yaml.
        num_ranks: ranks to start under mpirun, each with one thread; None: `hpcbal run` starts them.
        codes: exit codes that are all right.
        environ: more variables of its environment.

    Raises: SystemExit: the run has failed; the message has its output.
    """
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    command, more = [sys.executable, "-m", "hpcbal", "run", str(path)], dict(environ)
    if num_ranks is not None:
        command = [*mpirun(), "-n", str(num_ranks), *command]
        more |= {"OMP_NUM_THREADS": "1", **MPI_ENVIRONMENT}
    done = subprocess.run(command, env=environment(**more), capture_output=True, text=True, check=False)
    if done.returncode not in codes:
        raise SystemExit(f"{done.stdout}{done.stderr}\nthe run of {path} ended with code {done.returncode}")
    return read_ledger(Path(config["output"]["dir"]) / "ledger.jsonl")

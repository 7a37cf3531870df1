"""`hpcbal doctor`, alone and under mpirun, and `preflight` at the start of a run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from support.starting import MPI_ENVIRONMENT

ROOT = Path(__file__).parents[2]
DOCTOR = [sys.executable, "-m", "hpcbal", "doctor"]
MPIRUN = Path(sys.executable).parent / "mpirun"
STUBS = {
    "tensorflow": "raise ImportError('libcudart.so.12: cannot open shared object file')\n",
    "torch": "__version__ = '9.9'\n",
}

pytestmark = pytest.mark.e2e


def run(
    command: list[str], folder: Path, timeout_s: float = 150, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in a session of its own, which is killed whole if it does not end."""
    kept = {**os.environ, **MPI_ENVIRONMENT, "PYTHONPATH": str(ROOT), **environ}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            command, cwd=folder, env=kept, stdout=out, stderr=err, start_new_session=True
        )
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, code, out.read(), err.read())


def stub_libraries(folder: Path, **stubs: str) -> Path:
    """Make a folder whose modules come before this environment's, as those of a site's module do."""
    (folder / "any.egg").mkdir(parents=True)  # a folder of libraries comes first, and one's own last
    for name, text in {**STUBS, **stubs}.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def ranks(count: int, *words: str) -> list[str]:
    mpirun = str(MPIRUN) if MPIRUN.exists() else "mpirun"
    return [mpirun, "--oversubscribe", "-n", str(count), *words]


def levels(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    found: dict[str, Any] = json.loads(done.stdout)
    return {each["check"]: each["level"] for each in found["checks"]}


def test_ranks_check_what_they_do_together(tmp_path: Path) -> None:
    stubs = {"tensorflow": "from torch_facts import *\n", "torch_facts": "raise ImportError('no driver')\n"}
    libraries = stub_libraries(tmp_path / "module", **stubs)
    done = run(ranks(3, *DOCTOR, "--json"), tmp_path, PYTHONPATH=f"{libraries}:{ROOT}")
    found = levels(done)
    assert json.loads(done.stdout)["ranks"] == 3
    assert (done.returncode, found["TensorFlow"], found["PyTorch"]) == (1, "error", "error"), done.stderr
    fine = ("MPI", "collectives", "shared window", "output", "cores", "devices")
    assert {name: found[name] for name in fine} == dict.fromkeys(fine, "ok")
    assert [path.name for path in tmp_path.glob(".hpcbal*")] == []


def test_alone_it_starts_two_ranks_and_ends_with_0(tmp_path: Path) -> None:
    done = run([*DOCTOR, "--output", "runs/x"], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all-reduce of 1 MiB over 2 ranks" in done.stdout
    assert done.stdout.splitlines()[-1].endswith(" 0 errors")
    assert list(tmp_path.iterdir()) == []


def test_alone_with_the_mpirun_of_another_mpi_it_says_so(tmp_path: Path) -> None:
    libraries = stub_libraries(tmp_path / "module")
    script = tmp_path / "mpirun"
    script.write_text("#!/bin/sh\necho 'HYDRA build details:'\necho '    Version: 4.0.2'\n")
    script.chmod(0o755)
    done = run(
        [*DOCTOR, "--json"],
        tmp_path,
        PATH=f"{tmp_path}:{os.environ['PATH']}",
        PYTHONPATH=f"{libraries}:{ROOT}",
    )
    assert (done.returncode, levels(done)["launcher"]) == (1, "error")
    (said,) = [each for each in json.loads(done.stdout)["checks"] if each["check"] == "launcher"]
    assert "mpirun on PATH is of MPICH 4.0.2, but mpi4py uses" in said["text"]


def test_processes_that_mpi_leaves_alone_are_an_error(tmp_path: Path) -> None:
    done = run([*DOCTOR, "--json"], tmp_path, PMI_RANK="0", PMI_SIZE="4")
    assert (done.returncode, levels(done)) == (1, {"MPI": "error"})
    assert "PMI started 4 processes" in done.stdout
    other = run([*DOCTOR, "--json"], tmp_path, PMI_RANK="1", PMI_SIZE="4")
    assert (other.returncode, other.stdout) == (1, "")


RUN = """\
schema: 1
preflight: true
data: {dataset: "points:Points"}
defaults: {optimizer: {name: sgd, learning_rate: 0.1}, batch_size: 64, stop: {max_epochs: 1}}
dnns: [{name: a, model: "hpcbal.models:softmax"}]
backend: {name: emulated, rates: {a: {1: 3000}}}
slots: {per_node: 1, ranks_per_node: 3}
output: {dir: out}
"""
POINTS = """\
import numpy as np
from hpcbal.data.spec import LabelSpec, SampleSpec


class Points:
    num_classes = 2
    sample_spec = SampleSpec.of((4,), "float32")
    label_spec = LabelSpec()

    def __len__(self):
        return 200

    def read(self, number):
        return np.full(4, number % 2, np.float32), number % 2

    def describe(self, number):
        return f"point {number}"
"""
PROGRAM = """\
import os, sys
from hpcbal.doctor import local
{change}
from hpcbal.cli import main
sys.exit(main(["run", "run.yaml"]))
"""
SLOW = 'local.short_computation_s = lambda: 3.0 if os.environ["OMPI_COMM_WORLD_RANK"] == "3" else 1.0'
TINY = "local.shared_space = lambda path: dict(free_bytes=4096, total_bytes=65536, free_inodes=-1)"


def run_changed(folder: Path, count: int, change: str) -> subprocess.CompletedProcess[str]:
    """Start a run whose checks of a node find something else."""
    (folder / "run.yaml").write_text(RUN)
    (folder / "points.py").write_text(POINTS)
    return run(ranks(count, sys.executable, "-c", PROGRAM.format(change=change)), folder)


def test_preflight_names_a_slow_node_and_the_run_goes_on(tmp_path: Path) -> None:
    done = run_changed(tmp_path, 6, SLOW)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "50 % slower than the median of 2 nodes" in done.stderr
    assert "preflight: no errors in shared memory, output" in done.stderr


def test_preflight_refuses_a_run_before_it_trains(tmp_path: Path) -> None:
    done = run_changed(tmp_path, 3, TINY)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "hpcbal: preflight: shared memory: " in done.stderr
    assert "'hpcbal doctor' shows all checks" in done.stderr
    assert not list((tmp_path / "out").glob("dnns/*/checkpoint.h5"))

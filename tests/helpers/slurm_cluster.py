"""A throw-away Slurm for tests: tests/e2e/slurm.sh brings up virtual nodes on this machine.

scripts/test.sh installs what it needs where apt-get may do so.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
VENV = Path(sys.prefix)
HPCBAL = VENV / "bin" / "hpcbal"
FIXTURE = ROOT / "tests/e2e/slurm.sh"
POINTS = '''\
"""Noisy points around three centres; each of many ranks imports nothing but NumPy for them."""

import os
import signal

import numpy as np

from hpcbal.data.spec import LabelSpec, SampleSpec


class Points:
    num_classes = 3
    sample_spec = SampleSpec.of((6,), "float32")
    label_spec = LabelSpec()

    def __len__(self):
        return 600

    def read(self, number):
        centres = np.random.default_rng(1).normal(size=(3, 6))
        noise = np.random.default_rng(100 + number).normal(size=6)
        return (centres[number % 3] + noise).astype(np.float32), number % 3

    def describe(self, number):
        return f"point {number}"


class Deadly(Points):
    def read(self, number):
        os.kill(os.getpid(), signal.SIGKILL)
'''
ENSEMBLE = """
schema: 1
data: {dataset: "points:Points", validation_fraction: 0.2}
defaults:
  batch_size: 64
  optimizer: {name: sgd, learning_rate: 0.05, momentum: 0.9}
  stop: {max_epochs: EPOCHS}
dnns:
  - {name: a, model: "hpcbal.models:softmax"}
  - {name: b, model: "hpcbal.models:softmax", optimizer: {name: sgd, learning_rate: 0.02}}
backend: {name: emulated, rates: {a: {1: 600}, b: {1: 500}}}
schedule: {paradigm: global}  # so that gradients are summed over as many slots in each run
slots: {per_node: 1, preprocessors_per_node: 1}
"""
TASKS = ("--ntasks-per-node=3", "--cpus-per-task=1", "--gpus-per-node=0")
MARKS = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        os.geteuid() != 0 or any(shutil.which(name) is None for name in ("slurmctld", "munged", "ip")),
        reason="needs root, slurm-wlm, munge, libpmix-dev and iproute2 (scripts/test.sh)",
    ),
]
OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL"}


class Job:
    """A job of the throw-away Slurm."""

    def __init__(self, cluster: Cluster, number: str, log: Path | None = None) -> None:
        self.cluster, self.number = cluster, number
        self._log = log or cluster.folder / f"hpcbal-{number}.log"

    def show(self, key: str) -> str:
        text = self.cluster.run("scontrol", "show", "job", self.number)
        found = re.search(rf"\b{key}=(\S+)", text)
        return found[1] if found else ""

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def wait_for(self, what: Callable[[], bool], timeout_s: float = 150) -> None:
        deadline = time.monotonic() + timeout_s
        while not what():
            assert time.monotonic() < deadline, f"{self.show('JobState')}\n{self.log[-3000:]}"
            time.sleep(0.2)

    def wait_until_trained(self, passes: int = 1) -> None:
        self.wait_for(lambda: re.search(rf"\] (\w+ )?pass {passes} ", self.log) is not None)

    def end(self, timeout_s: float = 150) -> tuple[str, str]:
        """State and exit code."""
        self.wait_for(lambda: self.is_over, timeout_s)
        return self.show("JobState"), self.show("ExitCode")

    @property
    def is_over(self) -> bool:
        return self.show("JobState") in OVER

    def has_started_ranks(self) -> bool:
        """Whether the script has come to the launcher; the ranks may not catch signals yet."""
        return self._end_file.exists()

    @property
    def _end_file(self) -> Path:
        return self._log.parent / f".hpcbal-{self.number}.end"

    def kill_rank(self, rank: int) -> None:
        """Kill a rank of this job; other clusters of this machine may have jobs of the same number."""
        own = {f"HPCBAL_END_FILE={self._end_file}".encode(), f"SLURM_PROCID={rank}".encode()}
        found = [
            int(environ.parent.name)
            for environ in Path("/proc").glob("[0-9]*/environ")
            if own <= set(_content(environ).split(b"\0"))
        ]
        assert found
        for pid in found:
            os.kill(pid, signal.SIGKILL)

    def signal(self, name: str) -> None:
        """Send a signal to the batch script, as `--signal=B:NAME@...` does."""
        assert self.cluster.run("scancel", "--batch", f"--signal={name}", self.number) == ""


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # the process has ended
        return b""


class Cluster:
    """Eight virtual nodes, and a folder from which a user submits."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.home, self.folder = home, folder

    def control(
        self, verb: str, *arguments: str, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        command = [str(FIXTURE), verb, str(self.home), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=self.folder, env=env)

    def run(self, *command: str, environ: dict[str, str] | None = None) -> str:
        done = self.control("exec", *command, env=os.environ | (environ or {}))
        return done.stdout + done.stderr

    def submit(
        self, name: str, *options: str, script: str | Path = "several_nodes.sbatch", epochs: int = 3
    ) -> Job:
        config = self.folder / f"{name}.yaml"
        config.write_text(ENSEMBLE.replace("EPOCHS", str(epochs)))
        script = ROOT / "slurm" / script
        return self.submit_words(*TASKS, *options, str(script), config.name, "--output", f"runs/{name}")

    def lose_node(self, node: str) -> None:
        """Cut the power of a node, and let Slurm know, which would notice it after SlurmdTimeout."""
        self.control("kill-node", node)
        self.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")

    def hpcbal(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run hpcbal where jobs are submitted."""
        site = self.folder / "site.yaml"
        if not site.exists():
            site.write_text(f"before: ['export PYTHONPATH={ROOT}']\n")
        own = {"HPCBAL_SITE": str(site), "HPCBAL_CALIBRATION": "/dev/null", "PYTHONPATH": str(ROOT)}
        return self.control("exec", str(HPCBAL), *words, env={**os.environ, **own})

    def submit_run(self, name: str, *options: str, config: str | None = None, time: str = "0:20") -> Job:
        """Submit `runs/NAME` with `hpcbal submit`; its job is in the queue when this returns.

        Args:
            name: name of the run.
            options: more words.
            config: the configuration (default: three short epochs).
            time: the time limit.
        """
        text = ENSEMBLE.replace("EPOCHS", "3") if config is None else config
        (self.folder / f"{name}.yaml").write_text(text)
        output = f"runs/{name}"
        done = self.hpcbal("submit", f"{name}.yaml", "--output", output, "--time", time, "--json", *options)
        assert done.returncode == 0, done.stderr
        (number,) = json.loads(done.stdout)["ids"]
        return Job(self, number, self.folder / output / f"hpcbal-{number}.log")

    def in_queue(self, name: str) -> dict[str, Any]:
        """Return the job of `runs/NAME` as `hpcbal status` shows it."""
        shown = json.loads(self.hpcbal("status", f"runs/{name}", "--json").stdout)
        job: dict[str, Any] = shown["batch_jobs"][-1]
        return job

    def submit_words(self, *words: str) -> Job:
        answer = self.run("sbatch", "--parsable", *words, environ={"HPCBAL_VENV": str(VENV)})
        assert answer.strip().isdigit(), answer
        return Job(self, answer.strip())

    def with_mpirun(self) -> Path:
        """The script as a site without PMIx edits it."""
        path = self.folder / "mpirun.sbatch"
        text = (ROOT / "slurm" / "several_nodes.sbatch").read_text()
        path.write_text(text.replace("LAUNCHER=srun", "LAUNCHER=mpirun", 1))
        return path


@contextlib.contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """Bring up eight nodes, for a user who submits from a folder, and end all processes afterwards."""
    home = Path(tempfile.mkdtemp(prefix="sl"))  # short, for Unix sockets
    made = Cluster(home, folder)
    (folder / "points.py").write_text(POINTS)
    up = made.control("up", "8")
    assert up.returncode == 0, up.stdout + up.stderr
    try:
        yield made
    finally:
        assert made.control("down").returncode == 0
        shutil.rmtree(home)


def results(cluster: Cluster, name: str) -> dict[str, list[list[object]]]:
    """Return the numbers of all epochs, by DNN."""
    keys = ("epoch", "loss", "accuracy", "val_loss", "val_accuracy")
    found: dict[str, list[list[object]]] = {}
    for path in sorted((cluster.folder / "runs" / name / "dnns").glob("*/metrics.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        found[path.parent.name] = [[row[key] for key in keys] for row in rows]
    assert found
    return found

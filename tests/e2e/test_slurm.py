"""The job scripts on a real Slurm: slurm.sh beside this file brings up virtual nodes on this machine.

scripts/test.sh installs what it needs where apt-get may do so.
"""

from __future__ import annotations

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

import pytest

ROOT = Path(__file__).parents[2]
VENV = Path(sys.prefix)
HPCBAL = VENV / "bin" / "hpcbal"
FIXTURE = Path(__file__).with_name("slurm.sh")
POINTS = '''\
"""Noisy points around three centres; each of many ranks imports nothing but NumPy for them."""

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
OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL"}

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        os.geteuid() != 0 or any(shutil.which(name) is None for name in ("slurmctld", "munged", "ip")),
        reason="needs root, slurm-wlm, munge, libpmix-dev and iproute2 (scripts/test.sh)",
    ),
]


class Job:
    """A job of the throw-away Slurm."""

    def __init__(self, cluster: Cluster, number: str) -> None:
        self.cluster, self.number = cluster, number

    def show(self, key: str) -> str:
        text = self.cluster.run("scontrol", "show", "job", self.number)
        found = re.search(rf"\b{key}=(\S+)", text)
        return found[1] if found else ""

    @property
    def log(self) -> str:
        path = self.cluster.folder / f"hpcbal-{self.number}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_for(self, what: Callable[[], bool], timeout_s: float = 150) -> None:
        deadline = time.monotonic() + timeout_s
        while not what():
            assert time.monotonic() < deadline, f"{self.show('JobState')}\n{self.log[-3000:]}"
            time.sleep(0.2)

    def wait_until_trained(self, passes: int = 1) -> None:
        self.wait_for(lambda: re.search(rf"\] (\w+ )?pass {passes} ", self.log) is not None)

    def end(self, timeout_s: float = 150) -> tuple[str, str]:
        """State and exit code."""
        self.wait_for(lambda: self.show("JobState") in OVER, timeout_s)
        return self.show("JobState"), self.show("ExitCode")

    def has_started_ranks(self) -> bool:
        """Whether the script has come to the launcher; the ranks may not catch signals yet."""
        return (self.cluster.folder / f".hpcbal-{self.number}.end").exists()

    def kill_rank(self, rank: int) -> None:
        """Kill a rank of this job; other clusters of this machine may have jobs of the same number."""
        end_file = self.cluster.folder / f".hpcbal-{self.number}.end"
        own = {f"HPCBAL_END_FILE={end_file}".encode(), f"SLURM_PROCID={rank}".encode()}
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
        self.cluster.run("scancel", "--batch", f"--signal={name}", self.number)


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
        done = self.control(
            "exec", *command, env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"} | (environ or {})
        )
        return done.stdout + done.stderr

    def submit(
        self, name: str, *options: str, script: str | Path = "several_nodes.sbatch", epochs: int = 3
    ) -> Job:
        config = self.folder / f"{name}.yaml"
        config.write_text(ENSEMBLE.replace("EPOCHS", str(epochs)))
        script = ROOT / "slurm" / script
        return self.submit_words(*TASKS, *options, str(script), config.name, "--output", f"runs/{name}")

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


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home = Path(tempfile.gettempdir()) / f"sl{os.getpid()}"  # short, for Unix sockets
    made = Cluster(home, tmp_path_factory.mktemp("user"))
    (made.folder / "points.py").write_text(POINTS)
    up = made.control("up", "8")
    assert up.returncode == 0, up.stdout + up.stderr
    yield made
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


def test_jobs_end_with_what_the_run_has_recorded(cluster: Cluster) -> None:
    (cluster.folder / "het.sbatch").write_text(
        "#!/bin/bash\n#SBATCH --nodes=1 --ntasks-per-node=3\n"
        "#SBATCH hetjob\n#SBATCH --nodes=1 --ntasks-per-node=2\n"
        f"$({HPCBAL} launcher) {HPCBAL} run het.yaml --output runs/het >het.log 2>&1\n"
    )
    (cluster.folder / "het.yaml").write_text(ENSEMBLE.replace("EPOCHS", "2") + "preflight: true\n")
    lost = cluster.submit("lost", "--nodes=2", "--no-requeue", script=cluster.with_mpirun(), epochs=500)
    once = cluster.submit("once", "--no-requeue", "--nodes=1", epochs=500)
    whole = cluster.submit("one", script="one_node.sbatch", epochs=1)
    lost.wait_until_trained()
    status = subprocess.run(
        [HPCBAL, "status", "runs/lost"], cwd=cluster.folder, capture_output=True, text=True, timeout=60
    )
    assert "training" in status.stdout  # from outside of the cluster
    once.wait_until_trained()
    once.signal("USR2")
    heterogeneous = cluster.submit_words("het.sbatch")
    last = cluster.run("squeue", "-hj", lost.number, "-o", "%N").strip()
    node = f"n{re.findall('[0-9]+', last)[-1]}"
    cluster.control("kill-node", node)
    lost.wait_for(lambda: lost.show("JobState") != "RUNNING")
    assert lost.show("ExitCode") == "1:0"  # so it is FAILED, once Slurm has given up waiting for the node
    # otherwise Slurm notices it after SlurmdTimeout; the other nodes are enough for the other tests
    cluster.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    assert whole.end() == ("COMPLETED", "0:0")
    assert once.end() == ("FAILED", "75:0")
    assert heterogeneous.end() == ("COMPLETED", "0:0"), (cluster.folder / "het.log").read_text()
    two_nodes = re.findall(r"n\d+: 1 emulated slot, 1 preprocessor", (cluster.folder / "het.log").read_text())
    assert len(two_nodes) == 2  # one MPI world, with a node of each component
    assert "preflight: no errors in shared memory" in (cluster.folder / "het.log").read_text()


def test_jobs_that_are_stopped_or_lose_a_rank_go_on_and_learn_the_same(cluster: Cluster) -> None:
    """`scancel --signal` does at any time what `--signal=B:USR2@...` does before the time limit.

    Requeued jobs wait for some seconds, in which others start: hence all of them in one test.
    """
    killed = cluster.submit("killed", "--nodes=2", epochs=12)
    killed.wait_until_trained()
    killed.kill_rank(5)
    signalled = cluster.submit("signalled", "--nodes=2", script=cluster.with_mpirun(), epochs=12)
    signalled.wait_until_trained()
    cluster.run("scancel", "--signal=USR1", signalled.number)  # to Open MPI's daemon, which dies of it
    early = cluster.submit("early", "--nodes=1", "--export=NONE", epochs=1)
    early.wait_for(early.has_started_ranks)
    early.signal("USR2")  # is kept; and srun gets an environment
    stopped = cluster.submit("stopped", "--nodes=2", epochs=12)
    stopped.wait_until_trained()
    stopped.signal("USR2")
    whole = cluster.submit("whole", "--nodes=2", script=cluster.with_mpirun(), epochs=12)
    jobs = (stopped, whole, early, killed, signalled)
    assert [job.end(300) for job in jobs] == [("COMPLETED", "0:0")] * 5
    assert [job.show("Restarts") for job in jobs] == ["1", "0", "1", "1", "1"]
    assert "stopping (signal SIGUSR2" in stopped.log
    assert results(cluster, "stopped") == results(cluster, "killed") == results(cluster, "whole")
    assert results(cluster, "signalled") == results(cluster, "whole")
    assert re.search(
        r"lost communication with a remote daemon(.*\n)+.*Remote daemon: .* on node n\d", signalled.log
    )
    assert re.findall(r"rank (\d+) \(\w+, pid \d+\) on host .* died without", killed.log) == ["5"]


def test_submit_runs_an_array_and_compares_it_whatever_its_files_are_called(cluster: Cluster) -> None:
    """The words of scripts, and options in their heads, reach Slurm and the run as they were given.

    A requeued task is no ended one: the comparison waits for it.
    """
    odd = "it's $HOME.yaml"
    (cluster.folder / odd).write_text(ENSEMBLE.replace("EPOCHS", "6"))
    site = cluster.folder / "site.yaml"
    site.write_text(f"exclusive: false\nbefore: ['export PYTHONPATH={ROOT}']\n")
    command = ["submit", odd, "--array", "seeds=0-1", "--output", "runs/of it", "--samples", "600", "--json"]
    command += ["--until-done", "3"]
    environ = {"HPCBAL_SITE": str(site), "HPCBAL_CALIBRATION": "/dev/null", "PYTHONPATH": str(ROOT)}
    shown = cluster.run(str(HPCBAL), *command, "--", "--comment=two words #1", environ=environ)
    answer = json.loads(shown)
    array, last = Job(cluster, answer["ids"][0]), Job(cluster, answer["compare"])
    assert "Comment=two words #1" in cluster.run("scontrol", "show", "job", array.number)
    assert answer["job"]["time_s"] < 600, "the run is predicted to take seconds"
    stopped = Job(cluster, f"{array.number}_2")
    stopped.wait_until_trained()
    stopped.signal("USR2")
    assert last.end(300) == ("COMPLETED", "0:0")
    assert stopped.show("Restarts") == "1"
    page = (cluster.folder / "runs/of it/compare.html").read_text()
    assert "seed-0" in page
    assert "seed-1" in page
    for seed in (0, 1):
        assert [len(rows) for rows in results(cluster, f"of it/seed-{seed}").values()] == [6, 6]
    assert results(cluster, "of it/seed-0") != results(cluster, "of it/seed-1")

"""`hpcbal submit` to the last epoch, where stand-ins take the place of PBS, LSF and Flux.

This shows that commands, scripts and runs fit each other. It shows nothing about the real systems.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import stand_in_schedulers

from hpcbal.telemetry.files.batch_jobs import read_batch_jobs

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
CONFIG = """
schema: 1
name: nets
data: {dataset: "hpcbal.data:digits", validation_fraction: 0.2}
preprocessing: [{normalize: {mean: 4.9, std: 6.0}}]
defaults: {batch_size: 64, optimizer: {name: sgd, learning_rate: 0.05}, stop: {max_epochs: 12}}
dnns: [{name: a, model: "hpcbal.models:softmax"}]
backend: {name: emulated, rates: {a: {1: 1500}}}
slots: {per_node: 1, preprocessors_per_node: 1}
"""


@pytest.mark.parametrize("system", ["pbs", "flux", "lsf with jsrun"])
def test_an_array_comes_back_until_it_is_done_and_is_compared_under_stand_ins(
    system: str, tmp_path: Path
) -> None:
    """Each run is asked to stop once, after its first epoch."""
    site, home = tmp_path / "site.yaml", tmp_path / "home"
    home.mkdir()
    name, _, launcher = system.partition(" with ")
    mpirun = "launcher_options: [--oversubscribe]\n" if name != "flux" and not launcher else ""
    site.write_text(
        f"system: {name}\nlauncher: '{launcher}'\nexclusive: false\n{mpirun}venv: {sys.prefix}\n"
        f"before: ['export PYTHONPATH={ROOT} OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1']\n"
    )
    (tmp_path / "my nets.yaml").write_text(CONFIG)
    environ = os.environ | stand_in_schedulers.install(tmp_path / "bin", tmp_path / "queue")
    environ |= {"HPCBAL_SITE": str(site), "HOME": str(home), "PYTHONPATH": str(ROOT)}
    environ |= {"HPCBAL_CALIBRATION": "/dev/null"}
    words = ["submit", "my nets.yaml", "--array", "seeds=0-1", "--until-done", "4", "--output", "runs/of it"]
    words += ["--time", "0:05", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "hpcbal", *words],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    number = "".join(letter for letter in answer["compare"].partition(".")[0] if letter.isdecimal())
    folder = tmp_path / "runs" / "of it"

    def logs() -> str:
        found = [*tmp_path.glob("*.log"), *folder.glob("*.log"), *folder.glob("*.OU")]
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in found)

    def wait_for(what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 100
        while not what():
            assert time.monotonic() < deadline, logs()
            time.sleep(0.1)

    first = [f"1.{task}" for task in (1, 2)] if name != "flux" else ["1", "2"]
    for seed, key in enumerate(first):
        metrics = folder / f"seed-{seed}" / "dnns" / "a" / "metrics.jsonl"
        wait_for(lambda file=metrics: file.exists() and file.read_text().count("\n") > 0)
        os.kill(int((tmp_path / "queue" / f"{key}.pid").read_text()), signal.SIGUSR2)

    def outcomes() -> set[str]:
        files = [folder / f"seed-{seed}" / "status.json" for seed in (0, 1)]
        return {json.loads(file.read_text())["outcome"] for file in files}

    wait_for(lambda: outcomes() == {"done"})
    wait_for((tmp_path / "queue" / f"{number}.code").exists)
    wait_for(lambda: not any(folder.rglob(".hpcbal-*")))  # the last script removes its file at its end
    assert (tmp_path / "queue" / f"{number}.code").read_text() == "0", logs()
    assert "seed-1" in (folder / "compare.html").read_text()
    for seed in (0, 1):
        rows = (folder / f"seed-{seed}" / "dnns" / "a" / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(row)["epoch"] for row in rows] == [*range(1, 13)]
        jobs = read_batch_jobs(folder / f"seed-{seed}")
        # Users of PBS and Flux may not requeue: each start is a job, and says whose work it continues.
        assert (len(jobs) > 1) == (name != "lsf"), logs()
        assert all(after.continues == before.id for before, after in pairwise(jobs))

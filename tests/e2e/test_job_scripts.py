"""The job scripts, run by bash with stand-ins for the launchers: what they start, and how they end.

This shows that the scripts do what they say. It shows nothing about a real Slurm or LSF.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
LAUNCHER_OF_SCRIPT = {
    "slurm/one_node.sbatch": "srun",
    "slurm/several_nodes.sbatch": "srun",
    "lsf/one_node.lsf": "mpirun",
    "lsf/several_nodes.lsf": "jsrun",
}
# Stays until it is signalled, as ranks do that write a checkpoint first.
STOPS_CLEANLY = (
    "trap 'sleep 0.3; echo signalled >>\"$CALLS\"; exit 75' USR2; touch started; while :; do sleep 0.05; done"
)


@dataclass
class Site:
    """A submit folder with an environment, and stand-ins for the site's commands."""

    folder: Path
    calls: Path

    def add(self, name: str, text: str) -> None:
        """A stand-in that notes how it was called."""
        path = self.folder / "bin" / name
        path.write_text(f'#!/usr/bin/env bash\nprintf \'%s\\n\' "{name} $*" >>"$CALLS"\n{text}\n')
        path.chmod(0o755)

    def start(self, script: str, *arguments: str, **more: str) -> subprocess.Popen[str]:
        """Start a job script as the batch system does."""
        environ = os.environ | {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "CALLS": str(self.calls),
            "SLURM_SUBMIT_DIR": str(self.folder),
            "SLURM_JOB_ID": "42",
            "SLURM_NTASKS": "6",
            "LS_SUBCWD": str(self.folder),
            "HPCBAL_ARGUMENTS": " ".join(arguments),
        }
        return subprocess.Popen(
            ["bash", ROOT / script, *(arguments if script.startswith("slurm") else ())],
            cwd=self.folder,
            env=environ | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def called(self, name: str) -> list[str]:
        """The argument lines of a stand-in's calls."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [line.removeprefix(f"{name} ") for line in lines if line.startswith(f"{name} ")]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A site where every launcher ends at once with 0."""
    (tmp_path / "bin").mkdir()
    activate = tmp_path / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.write_text("export ACTIVATED=1\n")
    made = Site(tmp_path, tmp_path / "calls")
    for name in ("srun", "mpirun", "jsrun"):
        made.add(name, '[[ ${ACTIVATED:-} == 1 ]] && exit "${LAUNCHER_STATUS:-0}"; exit 99')
    made.add("scontrol", ":")
    return made


@pytest.fixture(params=sorted(LAUNCHER_OF_SCRIPT))
def script(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_starts_the_run_in_the_activated_environment(site: Site, script: str) -> None:
    job = site.start(script, "a.yaml", "--output", "out")
    _, reported = job.communicate(timeout=30)
    assert job.returncode == 0, reported
    (line,) = site.called(LAUNCHER_OF_SCRIPT[script])
    assert line.endswith("hpcbal run a.yaml --output out")


def test_without_a_config_the_usage_is_printed(site: Site, script: str) -> None:
    job = site.start(script)
    _, reported = job.communicate(timeout=30)
    assert job.returncode == 2
    assert reported.startswith("usage: ")
    assert site.called(LAUNCHER_OF_SCRIPT[script]) == []


@pytest.mark.parametrize("status", [0, 1, 2, 3, 70, 75])
def test_exits_with_the_code_of_the_run(site: Site, script: str, status: int) -> None:
    job = site.start(script, "a.yaml", LAUNCHER_STATUS=str(status))
    job.communicate(timeout=30)
    assert job.returncode == status
    requeued = script.startswith("slurm") and status == 75
    assert site.called("scontrol") == (["requeue 42"] if requeued else [])


def test_passes_the_signal_on_and_waits_for_the_checkpoints(site: Site, script: str) -> None:
    site.add(LAUNCHER_OF_SCRIPT[script], STOPS_CLEANLY)
    job = site.start(script, "a.yaml")
    deadline = time.monotonic() + 30
    while not (site.folder / "started").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    job.send_signal(signal.SIGUSR2)
    job.communicate(timeout=30)
    assert job.returncode == 75
    assert "signalled" in site.calls.read_text()
    assert site.called("scontrol") == (["requeue 42"] if script.startswith("slurm") else [])


@pytest.mark.parametrize("script", ["slurm/one_node.sbatch", "slurm/several_nodes.sbatch"])
def test_a_job_is_not_requeued_for_ever(site: Site, script: str) -> None:
    job = site.start(script, "a.yaml", LAUNCHER_STATUS="75", SLURM_RESTART_COUNT="50")
    job.communicate(timeout=30)
    assert job.returncode == 75
    assert site.called("scontrol") == []


@pytest.mark.parametrize("name", ["one_node.lsf", "several_nodes.lsf"])
def test_lsf_scripts_say_that_they_are_untested_and_ask_for_a_requeue(name: str) -> None:
    text = (ROOT / "lsf" / name).read_text()
    assert "Untested on LSF" in text
    assert '#BSUB -Q "75"' in text


def test_jsrun_gets_one_resource_set_per_node(site: Site) -> None:
    site.start("lsf/several_nodes.lsf", "a.yaml").communicate(timeout=30)
    (line,) = site.called("jsrun")
    assert line.startswith("--nrs 4 --rs_per_host 1 --tasks_per_rs 8 ")

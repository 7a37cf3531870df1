"""Every shell script parses, stops at errors, and can be started; scripts/test.sh lets shellcheck look."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import job_scripts
import pytest

ROOT = Path(__file__).parents[3]
SCRIPTS = sorted(
    [
        ROOT / ".ci" / "run",
        *ROOT.glob("scripts/*.sh"),
        *(ROOT / file for file in job_scripts.scripts()),
    ]
)


@pytest.fixture(params=SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def script(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_job_scripts_for_one_node_and_for_several_are_there() -> None:
    names = {path.name for path in SCRIPTS}
    for suffix in ("sbatch", "pbs", "lsf", "flux"):
        assert {f"one_node.{suffix}", f"several_nodes.{suffix}"} <= names


def test_script_parses(script: Path) -> None:
    done = subprocess.run(["bash", "-n", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_script_stops_at_the_first_error(script: Path) -> None:
    # Module functions and activation scripts, which job scripts call, use variables that are not set.
    options = "-euo" if script.suffix in (".sh", "") else "-eo"
    assert f"\nset {options} pipefail" in script.read_text()


def test_scripts_that_people_start_are_executable() -> None:
    for name in ("scripts/quickstart.sh", "scripts/test.sh", "scripts/setup.sh", ".ci/run"):
        assert os.access(ROOT / name, os.X_OK), name


@pytest.mark.parametrize("name", ["quickstart.sh", "test.sh"])
def test_help_sets_nothing_up(name: str, tmp_path: Path) -> None:
    environ = os.environ | {"HPCBAL_VENV": str(tmp_path / "venv")}
    done = subprocess.run(
        ["bash", ROOT / "scripts" / name, "--help"], capture_output=True, text=True, env=environ
    )
    assert done.returncode == 0
    assert f"scripts/{name} [ARGUMENT...]" in done.stdout
    assert not (tmp_path / "venv").exists()

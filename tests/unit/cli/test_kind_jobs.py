"""What the verbs do with a file of many parameter-server jobs, and what they do not know of it yet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcbal.cli import main
from hpcbal.config import load_config, resolved_yaml
from hpcbal.telemetry.views.jobs_status import new_jobs_status
from hpcbal.telemetry.views.status import write_status

EXAMPLE = Path(__file__).parents[3] / "configs" / "jobs.yaml"


def test_validate_counts_the_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(EXAMPLE)]) == 0
    assert capsys.readouterr().out == f"{EXAMPLE}: valid, 8 parameter-server jobs, output in runs/jobs\n"


def test_validate_writes_out_every_job(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["validate", str(EXAMPLE), "--resolved"]) == 0
    path = tmp_path / "jobs.yaml"
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    assert load_config(path) == load_config(EXAMPLE)


def test_validate_names_the_line_of_a_wrong_app(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text(EXAMPLE.read_text(encoding="utf-8").replace("apps:LDA", "apps:LAD"), encoding="utf-8")
    line = 1 + path.read_text(encoding="utf-8").splitlines().index("    app: hpcbal.paramserver.apps:LAD")
    assert main(["validate", str(path)]) == 2
    problem, *_ = capsys.readouterr().err.splitlines()
    assert problem.startswith(f"{path}:{line}: sweeps.1.app: got 'hpcbal.paramserver.apps:LAD'")
    assert "defines no 'LAD' (did you mean 'LDA'?)" in problem


def test_schema_shows_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "--kind", "jobs"]) == 0
    assert {"jobs", "sweeps", "schedule", "machines"} < set(json.loads(capsys.readouterr().out)["properties"])


@pytest.mark.parametrize("verb", ["plan", "simulate", "run"])
def test_a_verb_that_does_not_know_the_kind_says_so(
    verb: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([verb, str(EXAMPLE)]) == 2
    assert capsys.readouterr().err == f"{EXAMPLE}: kind: got jobs, which hpcbal {verb} does not know yet\n"
    assert list(tmp_path.iterdir()) == []


def test_export_and_resize_say_that_they_are_for_other_kinds(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(resolved_yaml(load_config(EXAMPLE)), encoding="utf-8")
    write_status(tmp_path / "status.json", new_jobs_status("jobs", 4))
    assert main(["export", str(tmp_path), "nmf-4000", "--to", str(tmp_path / "m.npz")]) == 2
    assert "kind: got jobs, which hpcbal export does not know yet" in capsys.readouterr().err
    assert main(["resize", str(tmp_path), "2"]) == 2
    assert "a run of many jobs on the same machines, allowed: the output of a" in capsys.readouterr().err

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


def test_plan_shows_the_ranks_and_who_comes_later(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(EXAMPLE), "--set", "jobs.nmf-4000.arrives_s=40"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "jobs: 8 parameter-server jobs, harmony",
        "ranks: 5 = 1 scheduler + 4 machines",
        "later: lasso-70000 after 15 s, lasso-140000 after 30 s, nmf-4000 after 40 s",
        f"start: mpirun -n 5 --bind-to none hpcbal run {EXAMPLE} --set jobs.nmf-4000.arrives_s=40",
    ]


@pytest.mark.parametrize(
    ("options", "machines"),
    [([], 4), (["--gpus", "12"], 12), (["--nodes", "3", "--gpus-per-node", "5"], 15), (["--nodes", "2"], 4)],
)
def test_plan_counts_the_machines(
    options: list[str], machines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(EXAMPLE), "--json", *options]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["machines"], plan["ranks"], plan["paradigm"]) == (machines, machines + 1, "harmony")
    assert [job["arrives_s"] for job in plan["jobs"]] == [0.0] * 6 + [15.0, 30.0]


def test_plan_without_any_machines_is_for_the_fewest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(EXAMPLE), "--json", "--set", "machines=[]"]) == 0
    assert json.loads(capsys.readouterr().out)["machines"] == 2


def test_plan_refuses_what_only_ensembles_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(EXAMPLE), "--samples", "3"]) == 2
    assert f"--samples: works with ensembles only, and {EXAMPLE} describes" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["simulate"])
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

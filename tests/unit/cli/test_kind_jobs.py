"""The verbs with a file of many parameter-server jobs, and their refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcbal.cli import main
from hpcbal.config import load_config, resolved_yaml
from hpcbal.telemetry.views.paramserver_status import new_jobs_status
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
        "wall time: unknown; --open-data opens the data (which runs their code) and simulates the run",
        f"start: mpirun -n 5 --bind-to none hpcbal run {EXAMPLE} --set jobs.nmf-4000.arrives_s=40",
        "   or: srun --nodes=1 --ntasks-per-node=5 --mpi=pmix --kill-on-bad-exit=0 --wait=120 --export=ALL "
        f"hpcbal run {EXAMPLE} --set jobs.nmf-4000.arrives_s=40",
    ]


def test_plan_refuses_what_a_run_would_refuse(capsys: pytest.CaptureFixture[str]) -> None:
    fixed = '{"paradigm": "naive", "groups": [{"jobs": ["mlr-20"], "machines": 9}]}'
    assert main(["plan", str(EXAMPLE), "--set", f"schedule={fixed}"]) == 2
    assert "got groups of 9 machines, but the run has 4" in capsys.readouterr().err


def test_plan_counts_the_machines_of_groups_if_nobody_says_how_many_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fixed = '{"paradigm": "naive", "groups": [{"jobs": ["mlr-20"], "machines": 9}]}'
    assert main(["plan", str(EXAMPLE), "--set", "machines=[]", "--set", f"schedule={fixed}"]) == 0
    assert "ranks: 10 = 1 scheduler + 9 machines" in capsys.readouterr().out


def test_a_run_has_two_machines_at_least(capsys: pytest.CaptureFixture[str]) -> None:
    one = "machines=[{count: 1, bandwidth: 1MB/s}]"
    assert main(["plan", str(EXAMPLE), "--set", one]) == 0
    assert "ranks: 3 = 1 scheduler + 2 machines" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "machines"),
    [
        ([], 4),
        (["--slots", "12"], 12),
        (["--nodes", "3", "--slots-per-node", "5"], 17),
        (["--nodes", "2"], 5),
    ],
)
def test_plan_counts_the_machines(
    options: list[str], machines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(EXAMPLE), "--json", *options]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["machines"], plan["ranks"], plan["paradigm"]) == (machines, machines + 1, "harmony")
    assert [job["arrives_s"] for job in plan["jobs"]] == [0.0] * 6 + [15.0, 30.0]
    assert plan["launch"][0].startswith(f"mpirun -n {machines + 1} "), "so many are started"


def test_plan_without_any_machines_is_for_the_fewest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(EXAMPLE), "--json", "--set", "machines=[]"]) == 0
    assert json.loads(capsys.readouterr().out)["machines"] == 2


def test_plan_refuses_what_only_ensembles_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(EXAMPLE), "--samples", "3"]) == 2
    assert f"--samples: works with ensembles only, and {EXAMPLE} describes" in capsys.readouterr().err


SMALL = """\
kind: jobs
defaults: {mini_batch: 50, stop: {max_epochs: 3}}
jobs:
  - {name: a, app: "hpcbal.paramserver.apps:MLR", seconds_per_sample: 0.002,
     data: {dataset: "hpcbal.paramserver.apps:generated_classes",
            args: &small {num_samples: 200, num_features: 100}}}
  - {name: b, app: "hpcbal.paramserver.apps:MLR", seconds_per_sample: 0.001, arrives_s: 0.5,
     data: {dataset: "hpcbal.paramserver.apps:generated_classes", args: *small}}
machines: [{count: 2, bandwidth: 1MB/s}]
"""


def small(tmp_path: Path) -> str:
    path = tmp_path / "jobs.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return str(path)


def test_simulate_predicts_jobs_under_each_paradigm(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    costs = [option for name in ("send_s", "notice_s") for option in ("--cost", f"{name}=0")]
    assert main(["simulate", small(tmp_path), "--paradigm", "all", "--slots", "2,4", "--json", *costs]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["machines"], row["paradigm"]) for row in found["rows"]] == [
        (count, name) for count in (2, 4) for name in ("harmony", "isolated", "naive")
    ]
    for row in found["rows"]:
        ended = {job["name"]: job["ended_s"] for job in row["jobs"]}
        assert row["makespan_s"] == max(ended.values())
        assert row["by_frames"]
        # All computing takes 1.2 s of one machine and 0.6 s of another.
        assert row["makespan_s"] > 1.8 / row["machines"]
    (isolated,) = [row for row in found["rows"] if (row["machines"], row["paradigm"]) == (2, "isolated")]
    assert isolated["network_use"] == 0  # each job has one machine
    assert isolated["makespan_s"] == pytest.approx(1.2, rel=0.1)


def test_simulate_prints_a_table_of_jobs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["simulate", small(tmp_path), "--cost", "start_s=1"]) == 0
    title, _, head, _, row, *notes = capsys.readouterr().out.splitlines()
    assert title == "jobs: 2 parameter-server jobs"
    assert not any("frames are not simulated" in note for note in notes)
    assert head.split()[:2] == ["machines", "paradigm"]
    assert row.split()[:2] == ["2", "harmony"]


def test_simulate_says_that_it_leaves_frames_out_on_many_machines(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["simulate", small(tmp_path), "--set", "machines=[{count: 20, bandwidth: 1MB/s}]"]) == 0
    assert "on more than 16 machines, frames are not simulated" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--set", "machines=[]"], "machines: got [], allowed here: machines with a bandwidth"),
        (["--set", "machines=[{count: 2}]"], "machines: got one without a bandwidth"),
        (["--set", "jobs.b.seconds_per_sample=null"], "jobs.b.seconds_per_sample: got null, allowed here"),
        (["--set", "memory_per_node=1000"], "memory_per_node: got 1,000 bytes, but a needs about"),
        (["--paradigm", "auto"], "--paradigm: got 'auto', allowed for many jobs: harmony, isolated"),
        (["--samples", "3"], "--samples: works with ensembles only"),
        (["--cost", "load_s=3"], "--cost: got 'load_s', allowed for many jobs: control_s, start_s"),
        (["--cost", "start_s=-3"], "--cost: start_s: got -3.0, allowed: >= 0"),
    ],
)
def test_simulate_refuses_what_it_cannot_predict(
    options: list[str], problem: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["simulate", small(tmp_path), *options]) == 2
    assert problem in capsys.readouterr().err.splitlines()[-1]


def test_resize_says_that_it_is_for_another_kind_and_export_which_jobs_there_are(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(resolved_yaml(load_config(EXAMPLE)), encoding="utf-8")
    write_status(tmp_path / "status.json", new_jobs_status("jobs", 4))
    for name, problem in (("nmf-4000", "no checkpoint yet"), ("nmf", "has no job 'nmf', allowed: ")):
        assert main(["export", str(tmp_path), name, "--to", str(tmp_path / "m.npz")]) == 2
        assert problem in capsys.readouterr().err
    assert main(["resize", str(tmp_path), "2"]) == 2
    assert "a run of many jobs on the same machines, allowed: the output of a" in capsys.readouterr().err

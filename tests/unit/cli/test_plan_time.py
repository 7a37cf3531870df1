"""`hpcbal plan`: the band of the wall time, and allocations side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcbal.cli import main
from hpcbal.planning.calibration import ASSUMED_STARTUP_S, EarlierRun, RunKey, append_run

Capture = pytest.CaptureFixture[str]

CONFIG = """\
data: {dataset: "hpcbal.data:digits"}
defaults: {optimizer: {name: sgd, learning_rate: 0.1}, batch_size: 32, stop: {max_epochs: 4}}
dnns:
  - {name: a, model: "m:f"}
  - {name: b, model: "m:f"}
  - {name: c, model: "m:f"}
  - {name: d, model: "m:f"}
slots: {per_node: 4}
schedule: {paradigm: independent}
backend: {name: emulated, rates: {a: {1: 50}, b: {1: 50}, c: {1: 50}, d: {1: 25}}}
"""
JOB = """\
kind: paramserver
app: hpcbal.paramserver.apps:NMF
args: {rank: 2}
data: {dataset: "hpcbal.paramserver.apps:generated_ratings", args: {num_users: 200, num_items: 50}}
mini_batch: 50
consistency: sync
tune: {enabled: false}
stop: {max_epochs: 3}
"""
MACHINES = "machines: [{count: 2, seconds_per_sample: 0.01, bandwidth: 1MB/s}]\n"
JOBS = """\
kind: jobs
jobs:
  - name: one
    app: hpcbal.paramserver.apps:NMF
    args: {rank: 2, access: dense}
    data: {dataset: "hpcbal.paramserver.apps:generated_ratings", args: {num_users: 200, num_items: 50}}
    mini_batch: 50
    seconds_per_sample: 0.01
    stop: {max_epochs: 3}
machines: [{count: 2, bandwidth: 1MB/s}]
"""


@pytest.fixture(autouse=True)
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of earlier runs; there is none yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HPCBAL_CALIBRATION", str(tmp_path / "runs.jsonl"))
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "alps")
    (tmp_path / "run.yaml").write_text(CONFIG, encoding="utf-8")
    return tmp_path / "runs.jsonl"


ENSEMBLES = RunKey("ensemble", "emulated", "alps")


def note(path: Path, count: int, key: RunKey = ENSEMBLES, startup_s: float = 10.0) -> None:
    for index in range(count):
        append_run(key, EarlierRun(100.0, startup_s, 121.0 + index / 10, 2.0, 1, 4, 0.9, 0.8), path)


def plan(capsys: Capture, *arguments: str) -> Any:
    assert main(["plan", "run.yaml", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_without_earlier_runs_the_band_is_an_assumption_and_says_so(capsys: Capture) -> None:
    found = plan(capsys)
    time = found["time"]
    assert time["wall_time_s"] == found["forecast"]["wall_time_s"] + ASSUMED_STARTUP_S
    assert time["band"]["low_s"] == pytest.approx(time["wall_time_s"] / 2)
    assert not time["band"]["is_calibrated"]
    assert main(["plan", "run.yaml"]) == 0
    shown = capsys.readouterr().out
    assert "because there are no earlier runs of this kind" in shown
    assert main(["plan", "run.yaml", "--slots", "2,4"]) == 0
    table = capsys.readouterr().out
    assert "assumed: half to twice the prediction" in table
    assert "nine of ten" not in shown + table
    assert "walltime to request: 0:" in shown


def test_earlier_runs_of_the_kind_and_site_make_the_band(capsys: Capture, history: Path) -> None:
    note(history, 20)
    for other in (
        RunKey("jobs", "emulated", "alps"),
        RunKey("ensemble", "torch", "alps"),
        RunKey("ensemble", "emulated", "jura"),
    ):
        note(history, 5, other)
    found = plan(capsys)
    band, expected_s = found["time"]["band"], found["forecast"]["wall_time_s"] + 10.0
    assert (band["num_runs"], band["startup_s"]) == (20, 10.0)
    assert expected_s * 1.1 <= band["low_s"] <= band["median_s"] <= band["high_s"] <= expected_s * 1.12
    assert found["time"]["node_hours"]["high"] == pytest.approx(band["high_s"] / 3600)
    assert found["time"]["checkpoint_s"] == 2.0
    busy = found["forecast"]["busy"] * found["forecast"]["wall_time_s"] / expected_s
    assert found["time"]["busy"] == pytest.approx(busy)
    assert main(["plan", "run.yaml"]) == 0
    assert "from 20 earlier runs of this kind" in capsys.readouterr().out


def test_damaged_lines_are_one_warning(capsys: Capture, history: Path) -> None:
    note(history, 9)
    with history.open("a", encoding="utf-8") as file:
        file.write("{torn\n{}\n")
    assert main(["plan", "run.yaml"]) == 0
    captured = capsys.readouterr()
    assert "from 9 earlier runs" in captured.out
    assert [line for line in captured.err.splitlines() if "skipped 2 lines" in line]


@pytest.mark.parametrize("option", ["--slots", "--gpus"])
def test_allocations_stand_side_by_side_and_the_largest_that_keeps_the_use_is_chosen(
    capsys: Capture, history: Path, option: str
) -> None:
    note(history, 9, startup_s=0.0)
    found = plan(capsys, option, "1,2,4", "--use", "0.8")
    rows = found["allocations"]
    assert [row["num_slots"] for row in rows] == [1, 2, 4]
    assert [row["chosen"] for row in rows] == [False, True, False]
    assert rows[0]["busy"] > rows[1]["busy"] >= 0.8 > rows[2]["busy"]
    single = plan(capsys, "--slots", "2")
    assert single["time"] == {key: value for key, value in rows[1].items() if key != "chosen"}
    assert main(["plan", "run.yaml", option, "1,2,4", "--use", "0.8"]) == 0
    shown = capsys.readouterr().out
    assert "nine of ten runs: from 9 earlier runs of this kind" in shown
    (marked,) = [line for line in shown.splitlines() if line.startswith("*  ")]
    assert marked.split()[1:3] == ["2", "1"]


def test_a_use_that_none_keeps_is_a_warning(capsys: Capture) -> None:
    assert main(["plan", "run.yaml", "--slots", "3,4", "--use", "1"]) == 0
    captured = capsys.readouterr()
    assert "none of these allocations keeps its slots so busy" in captured.err
    assert not any(line.startswith("*") for line in captured.out.splitlines())


def test_auto_takes_as_many_nodes_as_keep_the_use(capsys: Capture, history: Path) -> None:
    note(history, 1, startup_s=0.0)
    found = plan(capsys, "--nodes", "auto", "--use", "0.8", "--slots-per-node", "1")
    assert found["time"]["num_nodes"] == 3  # two epochs of d in a row, beside one of each other DNN
    assert len(found["nodes"]) == 3
    assert main(["plan", "run.yaml", "--nodes", "auto", "--use", "1", "--slots-per-node", "4"]) == 0
    assert "one node is the least" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["--nodes", "auto"], "--nodes auto: give --use SHARE"),
        (["--use", "0.8"], "--use: works with --nodes auto"),
        (["--slots", "4", "--use", "0.8"], "--use: works with --nodes auto"),
        (["--slots", "2,4", "--set", "data.dataset=m:d"], "the size of the dataset is not known"),
        (["--slots", "4,6"], "allowed with 4 slots per node"),
    ],
)
def test_what_cannot_be_compared_is_refused(capsys: Capture, given: list[str], problem: str) -> None:
    assert main(["plan", "run.yaml", *given]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert problem in captured.err


def test_a_share_that_is_none_is_refused(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "run.yaml", "--slots", "2,4", "--use", "80"])
    assert "got '80', allowed: a number above 0, at most 1" in capsys.readouterr().err


@pytest.mark.parametrize("text", [JOB + MACHINES, JOBS], ids=["paramserver", "jobs"])
def test_jobs_on_parameter_servers_are_simulated_with_their_data(
    capsys: Capture, history: Path, text: str
) -> None:
    Path("run.yaml").write_text(text, encoding="utf-8")
    assert plan(capsys)["time"] is None
    kind = "jobs" if text is JOBS else "paramserver"
    note(history, 9, RunKey(kind, "emulated", "alps"))
    found = plan(capsys, "--open-data")["time"]
    assert found["wall_time_s"] > 10.0 + 3 * 200 * 0.01 / 2
    assert 0.0 < found["busy"] < 1.0
    assert found["band"]["num_runs"] == 9
    rows = plan(capsys, "--open-data", "--slots", "2,4")["allocations"]
    assert [row["num_slots"] for row in rows] == [2, 4]
    assert rows[0] == found | {"chosen": False}
    assert rows[1]["busy"] < rows[0]["busy"]


def test_a_job_without_speeds_has_no_time_and_says_why(capsys: Capture) -> None:
    Path("run.yaml").write_text(JOB, encoding="utf-8")
    assert main(["plan", "run.yaml", "--open-data"]) == 0
    assert "wall time: unknown, because machines: has no seconds_per_sample" in capsys.readouterr().out
    assert main(["plan", "run.yaml", "--slots", "2,4"]) == 2
    assert "give --open-data" in capsys.readouterr().err

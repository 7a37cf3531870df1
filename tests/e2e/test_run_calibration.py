"""A run notes what it took, and the next plan uses that."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcbal.cli.main import main
from hpcbal.planning.calibration import ASSUMED_STARTUP_S

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
Plan = Callable[..., dict[str, Any]]


@pytest.fixture
def plan_of(lab: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Plan:
    """`hpcbal plan` in the process of the test."""
    monkeypatch.chdir(lab.folder)

    def plan(history: Path, *arguments: str) -> dict[str, Any]:
        monkeypatch.setenv("HPCBAL_CALIBRATION", str(history))
        capsys.readouterr()
        assert main(["plan", "run.yaml", *arguments, "--json"]) == 0
        time: dict[str, Any] = json.loads(capsys.readouterr().out)["time"]
        return time

    return plan


def lines_of(history: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in history.read_text(encoding="utf-8").splitlines()]


def test_an_ensemble_that_was_stopped_and_resumed_counts_once(
    lab: Any, plan_of: Plan, tmp_path: Path
) -> None:
    history = tmp_path / "state" / "runs.jsonl"
    lab.configure(data={"dataset": "toys:points", "args": {"num_samples": 240}}, slots={"per_node": 2})
    before = plan_of(history, "--samples", "240")
    assert not before["band"]["is_calibrated"]
    first = lab.start(HPCBAL_CALIBRATION=str(history))
    first.until(lambda: lab.events("checkpoint-written"), "checkpoint")
    first.process.send_signal(signal.SIGINT)
    assert first.wait().code == 75
    assert not history.exists()  # a run that was stopped is not over

    last = lab.run(HPCBAL_CALIBRATION=str(history))
    assert last.code == 0, last
    assert "slots trained in " in last.out
    (noted,) = lines_of(history)
    assert (noted["kind"], noted["backend"], noted["num_slots"]) == ("ensemble", "emulated", 2)
    whole = lab.events("run-finished")[-1].whole
    assert (whole.num_starts, whole.expected_startup_s) == (2, ASSUMED_STARTUP_S)
    assert "from the command to the end: predicted 0:00:" in last.out
    assert [noted[name] for name in ("predicted_s", "startup_s", "active_s", "busy")] == pytest.approx(
        [whole.predicted_s, whole.startup_s, whole.active_s, whole.busy]
    )
    assert noted["active_s"] > noted["startup_s"] + noted["predicted_s"] / 2
    assert 0.0 < noted["busy"] < 1.0

    with history.open("a", encoding="utf-8") as file:
        file.write((json.dumps(noted) + "\n") * 8)
    after = plan_of(history, "--samples", "240", "--set", "output.dir=other")
    assert after["band"]["num_runs"] == 9
    without_start_s = before["wall_time_s"] - ASSUMED_STARTUP_S
    assert after["wall_time_s"] == pytest.approx(without_start_s + noted["startup_s"])
    ratio = noted["active_s"] / (noted["predicted_s"] + noted["startup_s"])
    assert after["band"]["high_s"] == pytest.approx(after["wall_time_s"] * max(ratio, 1 / ratio))

    learnt = plan_of(history, "--samples", "240", "--set", "output.dir=other", "--learn-from", "out")
    assert learnt["wall_time_s"] == pytest.approx(after["wall_time_s"])
    assert "only 1 earlier run" in learnt["band"]["why"]

    again = lab.run(HPCBAL_CALIBRATION=str(history))
    assert "already finished" in again.out
    assert len(lines_of(history)) == 9


@pytest.mark.parametrize("kind", ["paramserver", "jobs"])
def test_jobs_on_parameter_servers_note_what_their_file_predicts(
    lab: Any, plan_of: Plan, tmp_path: Path, kind: str
) -> None:
    job: dict[str, Any] = {
        "app": "hpcbal.paramserver.apps:NMF",
        "args": {"rank": 2, "access": "dense"},
        "data": {
            "dataset": "hpcbal.paramserver.apps:generated_ratings",
            "args": {"num_users": 200, "num_items": 50},
        },
        "mini_batch": 50,
        "stop": {"max_epochs": 2},
    }
    machine: dict[str, Any] = {"count": 2, "bandwidth": "1MB/s"}
    config: dict[str, Any] = {"kind": kind, "slots": {"per_node": 2}, "output": {"dir": "out"}}
    if kind == "jobs":
        config |= {"jobs": [{"name": "one", "seconds_per_sample": 0.01, **job}], "machines": [machine]}
    else:
        config |= {**job, "machines": [{"seconds_per_sample": 0.01, **machine}]}
    (lab.folder / "run.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    history = tmp_path / "runs.jsonl"
    done = lab.run(HPCBAL_CALIBRATION=str(history))
    assert done.code == 0, done
    assert f"{'machine' if kind == 'jobs' else 'executor'}s computed in " in done.out
    (noted,) = lines_of(history)
    assert (noted["kind"], noted["num_slots"]) == (kind, 2)
    planned = plan_of(history, "--open-data", "--set", "output.dir=other")
    assert planned["wall_time_s"] == pytest.approx(noted["predicted_s"] + noted["startup_s"])
    assert "only 1 earlier run of this kind" in planned["band"]["why"]

"""A trial (`--smoke`) trains one small epoch of each DNN, and leaves the run alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcbal.cli import main
from hpcbal.config import load_config
from hpcbal.runtime.handoff.launch_dir import SMOKE_STEPS
from hpcbal.telemetry.views.results import read_results

CONFIGS = Path(__file__).parents[4] / "configs"
FIRST, SECOND = 1e9, 1e9 + 7


def test_a_trial_is_one_small_epoch_and_no_part_of_the_run(lab: Any, capsys: Any) -> None:
    stops = {"a": {"patience": 2}, "b": {"target": 0.99}, "c": {}}
    dnns = [{**dnn, "batch_size": 4} for dnn in lab.dnns()]
    for dnn in dnns:
        dnn["stop"].update(stops[dnn["name"]])
    lab.use(dnns=dnns, prune={"rule": "asha", "reduction": 2})
    for started_s in (FIRST, SECOND):  # neither resumes the other
        assert lab.run(smoke=True, started_s=started_s) == 0
        shown = capsys.readouterr().out
        assert "this was a trial: one epoch of each DNN, on at most 80 samples" in shown
        assert "resum" not in shown
    trials = sorted((lab.out / "smoke").iterdir())
    assert [path.name for path in lab.out.iterdir()] == ["smoke"]
    assert len(trials) == 2
    for trial in trials:
        rows = read_results(trial / "results.csv")
        assert {row.name: (row.state, row.epochs) for row in rows} == dict.fromkeys("abc", ("done", 1))
        assert load_config(trial / "config.yaml").data.max_samples == SMOKE_STEPS * 4
    lab.use()
    assert lab.run() == 0
    assert "resum" not in capsys.readouterr().out
    assert lab.states() == {dnn: ("done", epochs) for dnn, epochs in lab.epochs.items()}
    assert lab.run(smoke=True, started_s=SECOND + 7) == 0
    assert lab.run() == 0
    assert len(list((lab.out / "smoke").iterdir())) == 3


def test_a_dnn_that_fails_in_a_trial_is_named(lab: Any, capsys: Any) -> None:
    def fail(number: int) -> None:
        raise ValueError("no such layer")

    lab.use(dnns=[*lab.dnns()[:2], lab.dnn("c", 3, hook="broken")])
    lab._hooks["broken"] = fail
    assert lab.run(smoke=True) == 3
    shown = capsys.readouterr().out
    assert "no such layer" in shown
    assert "this was a trial" in shown


@pytest.mark.parametrize("option", ["--resume", "--retry-failed"])
def test_a_trial_begins_anew_each_time(option: str, capsys: Any) -> None:
    assert main(["run", "x.yaml", "--smoke", option]) == 2
    message = "hpcbal: --smoke: begins anew each time; leave out --resume and --retry-failed\n"
    assert capsys.readouterr().err == message


def test_only_ensembles_have_trials(capsys: Any) -> None:
    assert main(["run", str(CONFIGS / "jobs.yaml"), "--smoke"]) == 2
    assert "kind: got jobs, allowed here: ensemble" in capsys.readouterr().err

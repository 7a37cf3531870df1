"""At its end a run is compared with what was predicted before its start, not with what it has measured."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from hpcbal.config import load_config
from hpcbal.kinds import ENSEMBLE
from hpcbal.planning.calibration import ASSUMED_STARTUP_S, EarlierRun, RunKey, append_run
from hpcbal.runtime.record.remembered import expected_startup_s, remember_run, whole_lines
from hpcbal.telemetry.ledger.account import RunAccount
from hpcbal.telemetry.ledger.run import NodeFacts, WholeRun

WHOLE = WholeRun(6.0, 1.0, 11.2, 18.2, 0.34, (0.34,), 1, 0.1, expected_startup_s=2.0)
CONFIG = """\
defaults: {optimizer: {name: sgd, learning_rate: 0.1}, batch_size: 4, stop: {max_epochs: 2}}
dnns: [{name: a, model: "hpcbal.models:softmax"}]
backend: {name: emulated, rates: {a: {1: 10}}}
"""


def test_the_start_that_was_measured_does_not_mend_the_prediction() -> None:
    assert whole_lines(WHOLE, ENSEMBLE) == [
        "from the command to the end: predicted 0:00:08, took 0:00:18; until ranks worked: predicted "
        "0:00:02, took 0:00:11",
        "slots trained in 34% of their time, predicted 75%",
    ]
    assert ", took 0:00:18, in 2 starts;" in whole_lines(replace(WHOLE, num_starts=2), ENSEMBLE)[0]
    (use,) = whole_lines(replace(WHOLE, expected_startup_s=None), ENSEMBLE)
    assert use == "slots trained in 34% of their time"


def test_a_run_expects_the_start_that_plan_expects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = tmp_path / "runs.jsonl"
    monkeypatch.setenv("HPCBAL_CALIBRATION", str(history))
    (tmp_path / "a.yaml").write_text(CONFIG, encoding="utf-8")
    config = load_config(tmp_path / "a.yaml")
    assert expected_startup_s(config) == ASSUMED_STARTUP_S
    for startup_s in (3.0, 4.0, 9.0):
        append_run(RunKey.of(config), EarlierRun(60.0, startup_s, 70.0, 1.0, 1, 1, None, 0.5), history)
    assert expected_startup_s(config) == 4.0


def test_a_file_that_cannot_be_written_does_not_affect_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that is remembered shows that this one would be, too."""
    (tmp_path / "a.yaml").write_text(CONFIG, encoding="utf-8")
    key, account = RunKey.of(load_config(tmp_path / "a.yaml")), RunAccount()
    account.nodes = (NodeFacts("n", 1),)
    history = tmp_path / "runs.jsonl"
    monkeypatch.setenv("HPCBAL_CALIBRATION", str(history))
    remember_run(key, WHOLE, account)
    assert len(history.read_text(encoding="utf-8").splitlines()) == 1
    monkeypatch.setenv("HPCBAL_CALIBRATION", str(history / "runs.jsonl"))
    with caplog.at_level(logging.INFO):
        remember_run(key, WHOLE, account)
    said = f"{history}/runs.jsonl: later plans do not learn what this run took: File exists"
    assert said in caplog.text

"""A finished run is reported again; anything else is left to the ranks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from ledger_lines import a

from hpcbal.checkpoint.state import TrainingState
from hpcbal.checkpoint.writer import write_checkpoint
from hpcbal.config import EnsembleConfig, load_config, resolved_yaml
from hpcbal.events.history import Position
from hpcbal.runtime.handoff.finished import report_of_finished
from hpcbal.runtime.handoff.launch_dir import RunRequest, output_of
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.ledger.file import Ledger
from hpcbal.telemetry.ledger.run import RunFinishedLine, RunStartedLine
from hpcbal.telemetry.resources.processes import identity_of
from hpcbal.telemetry.views.ensemble_table import new_status
from hpcbal.telemetry.views.results import ResultRow, write_results
from hpcbal.telemetry.views.status import write_status

CONFIG = """
data: {dataset: "hpcbal.data:digits"}
dnns: [{name: a, model: "hpcbal.models:softmax", batch_size: 8, stop: {max_epochs: 1},
        optimizer: {name: sgd, learning_rate: 0.1}}]
backend: {name: emulated, rates: {a: {1: 100}}}
"""


@pytest.fixture
def request_(tmp_path: Path) -> RunRequest:
    (tmp_path / "run.yaml").write_text(CONFIG, encoding="utf-8")
    return RunRequest(tmp_path / "run.yaml", output=tmp_path / "out")


@pytest.fixture
def config(request_: RunRequest) -> EnsembleConfig:
    return load_config(request_.config_path)


def leave_run(request: RunRequest, config: EnsembleConfig, outcome: str) -> RunDirectory:
    run = output_of(request, config)
    run.root.mkdir()
    run.config.write_text(resolved_yaml(config), encoding="utf-8")
    with Ledger(run.ledger) as ledger:
        ledger.append(a(RunStartedLine))
        ledger.append(a(RunFinishedLine, outcome=outcome))
    write_results(run.results, [ResultRow("a", "done", 3, 0.75, 12.0, 24.0)])
    write_checkpoint(run.job("a"), TrainingState("a", 3, Position(3)))
    write_status(run.status, new_status("x", 1, heartbeat_s=5.0))
    return run


@pytest.mark.parametrize(("outcome", "code"), [("done", 0), ("failed-dnns", 3)])
def test_the_table_and_the_code_of_then(
    request_: RunRequest, config: EnsembleConfig, outcome: str, code: int
):
    run = leave_run(request_, config, outcome)
    report = report_of_finished(request_, config)
    assert report is not None
    assert report[1] == code
    assert report[0].splitlines()[2].split()[:4] == ["a", "done", "3", "0.7500"]
    assert f"files: {run.root}/" in report[0]


def test_a_lock_that_a_kill_after_the_end_has_left_behind_goes(request_: RunRequest, config: EnsembleConfig):
    run = leave_run(request_, config, "done")
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        owner = {"host": socket.gethostname(), "pid": process.pid, **identity_of(process.pid)}
    run.lock.write_text(json.dumps(owner), encoding="utf-8")
    assert report_of_finished(request_, config) is not None
    assert not run.lock.exists()


@pytest.mark.parametrize("outcome", ["suspended", "profiled"])
def test_a_run_that_is_not_finished_continues(request_: RunRequest, config: EnsembleConfig, outcome: str):
    leave_run(request_, config, outcome)
    assert report_of_finished(request_, config) is None


def test_a_run_whose_config_a_refused_start_has_changed_is_not_finished(
    request_: RunRequest, config: EnsembleConfig
):
    run = leave_run(request_, config, "done")
    later = run.ledger.stat().st_mtime + 1.0
    os.utime(run.config, (later, later))
    assert report_of_finished(request_, config) is None


def test_a_request_for_more_is_not_answered_early(request_: RunRequest, config: EnsembleConfig):
    run = leave_run(request_, config, "failed-dnns")
    assert report_of_finished(replace(request_, retry_failed=True), config) is None
    assert report_of_finished(replace(request_, profile_only=True), config) is None
    more = load_config(request_.config_path, ["dnns.0.stop.max_epochs=2"])
    assert report_of_finished(request_, more) is None
    with Ledger(run.ledger) as ledger:
        ledger.append(a(RunStartedLine))  # and killed
    assert report_of_finished(request_, config) is None


def test_damaged_or_missing_files_are_left_to_the_ranks(request_: RunRequest, config: EnsembleConfig):
    assert report_of_finished(request_, config) is None
    run = leave_run(request_, config, "done")
    run.results.write_text("gone", encoding="utf-8")
    assert report_of_finished(request_, config) is None
    run.ledger.write_text("{}\n", encoding="utf-8")
    assert report_of_finished(request_, config) is None
    run.ledger.unlink()
    assert report_of_finished(request_, config) is None


def test_weights_of_another_dnn_are_left_to_the_ranks(request_: RunRequest, config: EnsembleConfig):
    run = leave_run(request_, config, "done")
    write_checkpoint(run.job("a"), TrainingState("b", 3, Position(3)))
    (run.job("a") / "checkpoint.previous.h5").unlink()
    assert report_of_finished(request_, config) is None


def test_a_damaged_status_is_left_to_the_ranks(request_: RunRequest, config: EnsembleConfig):
    run = leave_run(request_, config, "done")
    run.status.write_text("{", encoding="utf-8")
    assert report_of_finished(request_, config) is None


def test_the_output_of_the_command_line_wins(request_: RunRequest, config: EnsembleConfig):
    assert output_of(request_, config).root == request_.output
    assert output_of(replace(request_, output=None), config).root == Path("runs/run")

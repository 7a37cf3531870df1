"""A run goes to MLflow and Weights & Biases with all its epochs, into local directories."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from strict_trackers import MlflowClient, OfflineRun, strict_modules

from hpcbal.cli import main
from hpcbal.config import load_config, resolved_yaml
from hpcbal.errors import InputError, OutputError
from hpcbal.events.history import EpochRecord
from hpcbal.export.tracking import export_tracking, read_tracked
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.ledger import file
from hpcbal.telemetry.ledger.dnn_lines import DnnRetriedLine
from hpcbal.telemetry.ledger.file import Ledger
from hpcbal.telemetry.streams.metrics import MetricsWriter
from hpcbal.telemetry.views.ensemble_table import new_status
from hpcbal.telemetry.views.status import write_status

CONFIG = """
name: lab
defaults: {optimizer: {name: sgd, learning_rate: 0.1}, batch_size: 4, stop: {max_epochs: 900}}
dnns:
  - {name: small, model: "m:f", args: {depth: 8, note: "NOTE"}, k_fold: 2, fold: 1}
  - {name: broken, model: "m:f"}
"""
EPOCHS = 600


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, module in strict_modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    source, root = tmp_path / "run.yaml", tmp_path / "run"
    source.write_text(CONFIG.replace("NOTE", "x" * 7000), encoding="utf-8")
    root.mkdir()
    (root / "config.yaml").write_text(resolved_yaml(load_config(source)), encoding="utf-8")
    status: Any = new_status("lab", 1)
    common = {
        "epochs": 1,
        "max_epochs": 900,
        "metrics": {},
        "slots": [],
        "wall_time_s": 0.0,
        "slot_seconds": 0.0,
    }
    status["dnns"] = [
        {"name": "small", "state": "done", "cause": "", "detail": "", **common},
        {"name": "broken", "state": "failed", "cause": "error", "detail": "no such layer", **common},
    ]
    write_status(root / "status.json", status)
    with MetricsWriter(RunDirectory(root)) as writer:
        for epoch in range(1, EPOCHS + 1):
            metrics = {"loss": float("nan") if epoch == 2 else 1.0 / epoch, "val_top 5%": 0.5}
            writer.write("small", EpochRecord(epoch, epoch - 1, metrics, 2.0), {"learning_rate": 0.1})
    (root / "dnns" / "small" / "best.h5").touch()
    return root


def test_mlflow_gets_a_run_for_each_dnn(run: Path) -> None:
    place = export_tracking(run, "mlflow")
    assert place == run / "tracking" / "mlflow"
    runs = MlflowClient.stores[str(place)]["lab"]
    small, broken = runs["small"], runs["broken"]
    losses = {each.step: each.value for each in small.metrics if each.key == "loss"}
    assert losses == {epoch: 1.0 / epoch for epoch in range(1, EPOCHS + 1) if epoch != 2}
    assert {each.key for each in small.metrics} == {"loss", "val_top 5_", "learning_rate", "seconds"}
    assert small.params["args.depth"] == "8"
    assert small.params["fold"] == "1"
    assert len(small.params["args.note"]) == 500
    assert small.tags["hpcbal.best.h5"] == "dnns/small/best.h5"
    assert small.ended is not None
    assert small.ended[0] == "FINISHED"
    assert broken.ended is not None
    assert broken.ended[0] == "FAILED"
    assert broken.tags["hpcbal.cause"] == "error no such layer"
    assert not broken.metrics


def test_weights_and_biases_gets_an_offline_run_for_each_dnn(run: Path) -> None:
    export_tracking(run, "wandb-offline")
    small, broken = OfflineRun.made
    assert (small.project, small.name, small.exit_code) == ("lab", "small", 0)
    assert [step for step, _ in small.history] == list(range(1, EPOCHS + 1))
    assert small.history[2][1]["loss"] == 1.0 / 3
    assert "loss" not in small.history[1][1]
    assert small.config["args.depth"] == "8"
    assert small.summary == {"state": "done"}
    assert (broken.name, broken.exit_code, broken.history) == ("broken", 1, [])
    assert OfflineRun.running is None


def test_identifiers_belong_to_the_training_and_not_to_its_place(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ids(directory: Path) -> set[str]:
        place = export_tracking(directory, "wandb-offline", tmp_path / f"w{next(numbers)}")
        return {path.name[-12:] for path in place.glob("wandb/*")}

    def begin(directory: Path) -> None:
        path = directory / "ledger.jsonl"
        path.unlink(missing_ok=True)
        moment = f"2026-11-30T12:00:0{next(numbers)}.000Z"
        with monkeypatch.context() as patch, contextlib.closing(Ledger(path)) as ledger:
            patch.setattr(file, "utc_text", lambda: moment)
            ledger.append(DnnRetriedLine("small"))

    numbers = itertools.count()
    begin(run)
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    found = ids(run)
    assert ids(copy) == found
    assert len(found) == 2
    begin(copy)
    assert not ids(copy) & found


@pytest.mark.parametrize("tracker", ["mlflow", "wandb-offline"])
def test_a_second_export_into_the_same_place_is_refused(
    run: Path, tmp_path: Path, tracker: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export-tracking", str(run), "--to", tracker]) == 0
    assert "tracking/" in capsys.readouterr().out
    assert main(["export-tracking", str(run), "--to", tracker]) == 2
    assert "already; remove" in capsys.readouterr().err
    assert main(["export-tracking", str(run), "--to", tracker, "--into", str(tmp_path / "other")]) == 0


def test_half_of_a_run_does_not_stay_in_mlflow(run: Path) -> None:
    MlflowClient.fails_at = "broken"
    with pytest.raises(OutputError, match="cannot write: No space left on device; choose another --into"):
        export_tracking(run, "mlflow")
    MlflowClient.fails_at = ""
    place = export_tracking(run, "mlflow")
    MlflowClient(place.absolute().as_uri()).delete_experiment("lab")
    with pytest.raises(
        InputError, match=r"holds a deleted experiment lab already; remove .*/\.trash/lab, or"
    ):
        export_tracking(run, "mlflow")


@pytest.mark.parametrize(("tracker", "library"), [("mlflow", "mlflow"), ("wandb-offline", "wandb")])
def test_a_missing_library_is_named(
    run: Path, tracker: Any, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InputError, match=rf"needs {library} \(.*\); pip install 'hpcbal\[tracking\]'"):
        export_tracking(run, tracker)
    assert not (run / "tracking").exists()


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no config\.yaml: not the output directory of a run"):
        read_tracked(tmp_path)


def test_metrics_that_cannot_be_read_are_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = run / "dnns" / "small" / "metrics.jsonl"
    metrics.unlink()
    metrics.mkdir()
    assert main(["export-tracking", str(run), "--to", "mlflow"]) == 2
    assert capsys.readouterr().err == f"hpcbal: {metrics}: cannot read: Is a directory\n"
    metrics.rmdir()
    os.mkfifo(metrics)
    with pytest.raises(InputError, match=r"cannot read: it is a pipe .*; restore or remove it"):
        read_tracked(run)

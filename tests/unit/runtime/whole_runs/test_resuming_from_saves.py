"""A start that dies between two renames of a save resumes, and ends with the same bits as a calm run."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from soak.cases import PROFILE

from hpcbal.checkpoint.best import read_best


@pytest.fixture
def keras_models(in_process: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers build Keras models; one after the other, because their seeds belong to the whole process."""
    from hpcbal.training.keras.tensorflow_backend import TensorFlowBackend

    lock = threading.Lock()

    class Backend(TensorFlowBackend):
        def build(self, *args: Any, **options: Any) -> Any:
            with lock:
                return super().build(*args, **options)

    roles = sys.modules[type(in_process).__module__]
    monkeypatch.setattr(roles, "emulated_backend", lambda *args, **options: Backend(precision="float64"))


def outcome(lab: Any) -> dict[str, Any]:
    """Last and best weights, optimizer and history of each DNN, bit by bit, and what the ledger says."""
    found: dict[str, Any] = {}
    for name, (history, arrays) in lab.outcome().items():
        best, _, _ = read_best(lab.out / "dnns" / name, with_arrays=True)
        assert best is not None
        weights = {key: array.tobytes() for key, array in best.arrays.items() if key.startswith("weights/")}
        found[name] = (history, {key: array.tobytes() for key, array in arrays.items()}, best.epoch, weights)
    lines = {(line.dnn_id, line.pass_index): dict(line.metrics) for line in lab.events("epoch-done")}
    return {**found, "metrics": lines, "rows": lab.states()}


def test_a_keras_model_continues_bit_for_bit_from_every_moment_of_a_save(
    lab: Any, keras_models: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout, batch norm, Adam, weights of classes, a falling rate, slices and averages, in a group of 2."""
    profile = lab.out.with_name("rates.json")
    profile.write_text(json.dumps(PROFILE), encoding="utf-8")
    falling = {"name": "plateau", "factor": 0.5, "patience": 1, "min_delta": 1.0}
    dnn = {
        "name": "a",
        "model": "workloads.random_layers:dropping",
        "optimizer": {"name": "adam", "learning_rate": 0.02, "schedule": falling},
        "class_weights": {0: 1.0, 1: 2.0, 2: 0.5},
        "stop": {"max_epochs": 3, "monitor": "val_loss"},
        "accumulate": 2,
        "ema": 0.8,
    }
    lab.use(
        dnns=[dnn],
        backend={"name": "tensorflow", "precision": "float64", "collective": "mpi"},
        schedule={"paradigm": "global", "profiling": {"rates": str(profile)}},
    )
    moments: dict[tuple[str, ...], Path] = {}
    replace = os.replace

    def keep_moments(source: Any, target: Any) -> None:
        """Copy the run's directory before each rename of a save; the last copies stay."""
        if Path(target).suffix == ".h5":
            files = tuple(sorted(path.name for path in Path(target).parent.glob("*.h5*")))
            moments[files] = lab.out.with_name("-".join(files))
            shutil.rmtree(moments[files], ignore_errors=True)
            shutil.copytree(lab.out, moments[files], ignore=shutil.ignore_patterns("run.lock"))
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", keep_moments)
        assert lab.run() == 0
    calm = outcome(lab)
    late = [files for files in moments if "best.previous.h5" in files]
    assert len(late) == 4, "each rename has been seen"
    for files in late:
        shutil.rmtree(lab.out)
        moments[files].rename(lab.out)
        assert lab.run() == 0
        assert outcome(lab) == calm, files

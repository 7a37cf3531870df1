"""Runs that were trained without ranks: a configuration, and weights that were never moved far."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import yaml

from hpcbal.checkpoint.background import BackgroundWriter
from hpcbal.checkpoint.best import BEST_BY
from hpcbal.checkpoint.state import TrainingState
from hpcbal.config import load_config, resolved_yaml
from hpcbal.data import open_source
from hpcbal.events.history import EpochRecord, Position
from hpcbal.training.keras.plain_model import user_model
from hpcbal.training.keras.tensorflow_backend import TensorFlowBackend
from hpcbal.training.keras.tensorflow_replica import TensorFlowReplica

PROGRAMS = Path(__file__).parent / "programs"


class Run:
    """The output directory of a run with one DNN `a`, saved after epoch 1 (best) and epoch 2 (last)."""

    def __init__(self, folder: Path, model: str, **sections: Any) -> None:
        self.out = folder / "out"
        self.out.mkdir()
        dnn = {
            "name": "a",
            "model": model,
            "args": sections.pop("args", {}),
            "optimizer": {"name": "adam", "learning_rate": 0.1},
            "batch_size": 16,
            "stop": {"max_epochs": 2},
        }
        steps = [{"random_flip": {}}, {"normalize": {"mean": 0.3, "std": 0.4, "scale": 0.0625}}]
        given = {"schema": 1, "preprocessing": steps, **sections, "dnns": [dnn]}
        (folder / "run.yaml").write_text(yaml.safe_dump(given), encoding="utf-8")
        config = load_config(folder / "run.yaml")
        (self.out / "config.yaml").write_text(resolved_yaml(config), encoding="utf-8")
        self.source = source = open_source(config)
        backend = TensorFlowBackend("cpu", config.backend.precision)
        self.replica: TensorFlowReplica = backend.build(
            config.dnns[0],
            source.sample_spec,
            source.num_classes,
            config.seed,
            source.on_device,
            source.label_spec,
        )
        initial = self.replica.state()
        rng = np.random.default_rng(0)
        history: tuple[EpochRecord, ...] = ()
        with BackgroundWriter() as writer:
            for epoch, value in ((1, 0.75), (2, 0.5)):
                history += (EpochRecord(epoch, epoch, {"val_accuracy": value}),)
                arrays = {name: self._moved(array, rng) for name, array in initial.items()}
                state = TrainingState("a", epoch, Position(epoch), history, arrays, source.fingerprint)
                if epoch == 1:
                    state = dataclasses.replace(state, meta={BEST_BY: "val_accuracy"})
                writer.submit(self.out / "dnns" / "a", state, best=epoch == 1)
                writer.wait()
                self.replica.load_state(arrays)
                if epoch == 1:
                    self.best_outputs = self.outputs()
            self.last_outputs = self.outputs()

    @staticmethod
    def _moved(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Other numbers, also for moving statistics; variances stay above 0."""
        if array.dtype.kind != "f":
            return array
        return (array + rng.uniform(0.0, 0.5, array.shape)).astype(array.dtype)

    def samples(self) -> np.ndarray:
        shape = [7 if length is None else length for length in self.source.sample_spec.shape]
        return np.random.default_rng(1).random((5, *shape)).astype(keras.config.floatx())

    def outputs(self) -> np.ndarray:
        """Return the outputs of the network in inference."""
        return np.asarray(user_model(self.replica)(self.samples(), training=False))


@pytest.fixture
def make_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    monkeypatch.syspath_prepend(str(PROGRAMS))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")  # as the verb does

    def make(model: str, folder: str = "run", **sections: Any) -> Run:
        (tmp_path / folder).mkdir()
        return Run(tmp_path / folder, model, **sections)

    return make

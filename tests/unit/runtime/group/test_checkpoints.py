"""A model that changed since its checkpoint is refused with what differs; the weights that it has stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcbal.checkpoint.state import TrainingState
from hpcbal.checkpoint.writer import write_checkpoint
from hpcbal.config import EnsembleConfig
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.errors import InputError
from hpcbal.events.history import Position
from hpcbal.runtime.group.replicas import PARTITION_PREFIX, SUMS_NAME, check_model
from hpcbal.training.emulated_backend import EmulatedBackend


@pytest.fixture
def run(tmp_path: Path) -> dict[str, Any]:
    """Arguments of `check_model` for a DNN with 6 features and 3 classes."""
    dnn = {
        "name": "a",
        "model": "hpcbal.models:softmax",
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "batch_size": 4,
        "stop": {"max_epochs": 1},
    }
    config = EnsembleConfig.model_validate({"name": "run", "dnns": [dnn]})

    class Context:
        def __init__(self) -> None:
            self.config = config

        def dnn_directory(self, name: str) -> Path:
            return tmp_path / name

    class Facts:
        class spec:  # noqa: N801
            sample = SampleSpec.of((6,), "float64")
            label = LabelSpec()

        num_classes = 3
        class_names = ()
        on_device = ()
        sample_weights = None

    return {"context": Context(), "facts": Facts(), "backend": EmulatedBackend({}), "dnn": config.dnns[0]}


def save(directory: Path, arrays: dict[str, np.ndarray]) -> None:
    write_checkpoint(directory, TrainingState("a", 3, Position(3), arrays=arrays))


def test_without_a_checkpoint_and_with_one_that_fits_all_is_well(run: dict[str, Any], tmp_path: Path) -> None:
    check_model(**run)
    replica = run["backend"].build(run["dnn"], run["facts"].spec.sample, 3, 0)
    others = {SUMS_NAME: np.zeros(3), f"{PARTITION_PREFIX}ids": np.arange(4)}
    save(tmp_path / "a", replica.state() | others)
    check_model(**run)


def test_a_model_that_has_changed_is_refused_with_what_differs(run: dict[str, Any], tmp_path: Path) -> None:
    replica = run["backend"].build(run["dnn"], run["facts"].spec.sample, 3, 0)
    saved = {name: array for name, array in replica.state().items() if "bias" not in name}
    save(tmp_path / "a", saved)
    with pytest.raises(InputError) as caught:
        check_model(**run)
    text = str(caught.value)
    assert text.startswith(
        f"{tmp_path}/a: the model changed since this checkpoint (epoch 3): layer softmax: "
    )
    assert "bias (3,) is new; restore the code" in text

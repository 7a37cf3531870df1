"""The example configurations for other tasks: a step on their data, with their models, losses and metrics."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hpcbal.config import load_config
from hpcbal.data import open_source
from hpcbal.training.keras.tensorflow_backend import TensorFlowBackend

CONFIGS = Path(__file__).parents[3] / "configs"
METRICS = {
    "diabetes": ["loss", "r2_score", "mae"],
    "digit_tags": ["loss", "auc", "f1_score"],
    "segmentation": ["loss", "mean_iou", "accuracy"],
}


@pytest.mark.parametrize("name", METRICS)
def test_an_example_learns_from_a_batch(name: str) -> None:
    config = load_config(CONFIGS / f"{name}.yaml")
    source, dnn = open_source(config), config.dnns[-1]
    ids = source.train_ids[:8]
    samples = [source.sample(int(i), 0, training=True) for i in ids]
    x, y = (np.stack([each[place] for each in samples]) for place in (0, 1))
    replica = TensorFlowBackend().build(
        dnn,
        source.sample_spec,
        source.num_classes,
        config.seed,
        source.on_device,
        source.label_spec,
    )
    batch = SimpleNamespace(ids=ids, x=x, y=y, work=8.0, padding_limit=float("inf"))
    before = replica.train_alone(batch)
    for _ in range(20):
        after = replica.train_alone(batch)
    found = replica.metrics(after)
    assert list(found) == METRICS[name]
    assert after.mean_loss < before.mean_loss
    assert all(np.isfinite(value) for value in found.values())

"""The example of docs/unequal-samples.md: its own models learn, and padding changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcbal.config import EnsembleConfig, load_config
from hpcbal.data import PreprocessedSamples, open_source
from hpcbal.dataplane.reader import Batch
from hpcbal.training.backend import LocalCollective
from hpcbal.training.keras.tensorflow_backend import TensorFlowBackend
from hpcbal.training.step import evaluate_step, train_step

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> EnsembleConfig:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    warnings: list[str] = []
    config = load_config(EXAMPLES / "walks.yaml", warn=warnings.append)
    assert isinstance(config, EnsembleConfig)
    assert warnings == []
    return config


def batch_of(source: PreprocessedSamples, ids: Any) -> Batch:
    samples, labels = zip(*(source.sample(i, 0, training=True) for i in ids.tolist()), strict=True)
    return Batch(ids, list(samples), np.array(labels))


@pytest.mark.parametrize("name", ["pooled", "extremes"])
def test_models_of_the_example_ignore_padding_and_learn(config: EnsembleConfig, name: str) -> None:
    source = open_source(config)
    (dnn,) = (each for each in config.dnns if each.name == name)
    replica = TensorFlowBackend().build(dnn, source.sample_spec, source.num_classes, config.seed)
    assert not replica.warnings, "a layer ignores the mask"
    batch = batch_of(source, source.train_ids[: dnn.batch_size])
    assert len(set(map(len, batch.x))) > 5
    together = evaluate_step(replica, batch, LocalCollective()).sums
    alone = [batch_of(source, batch.ids[i : i + 1]) for i in range(len(batch))]
    losses = [evaluate_step(replica, one, LocalCollective()).sums.loss for one in alone]
    assert together.loss == pytest.approx(sum(losses), rel=1e-5)
    for _ in range(30):
        last = train_step(replica, batch, len(batch), LocalCollective()).sums
    assert last.loss < 0.8 * together.loss

"""The synchronised layer: sums over ranks simulated by slices, and is plain if no rank sums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hpcbal.errors import InputError
from hpcbal.models.sync_batch_norm import (
    SyncBatchNormalization,
    exchange_length,
    summing_with,
    synchronised_layers,
)


class Parts:
    """Both halves of a batch in one process: records their numbers first, then returns the sums."""

    def __init__(self) -> None:
        self.noted: list[tf.Tensor] = []

    def note(self, numbers: tf.Tensor) -> tf.Tensor:
        self.noted.append(numbers)
        return numbers

    def total(self, numbers: tf.Tensor) -> tf.Tensor:
        return tf.add_n(self.noted)


def moments(layer: SyncBatchNormalization, parts: list[Any], masks: list[Any]) -> Any:
    """Mean and variance over all parts, as each part sees them; those of the first part."""
    ranks = Parts()
    with summing_with(ranks.note):
        for part, mask in zip(parts, masks, strict=True):
            layer._moments(tf.constant(part), mask)
    with summing_with(ranks.total):
        return layer._moments(tf.constant(parts[0]), masks[0])


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 2e-6)])
@pytest.mark.parametrize("axis", [1, -1])
def test_moments_are_those_of_all_parts(dtype: str, tolerance: float, axis: int) -> None:
    # Means far larger than deviations: squares of float32 around zero would lose the variance.
    x = (100.0 + np.random.default_rng(0).normal(size=(9, 4, 4, 3))).astype(dtype)
    layer = SyncBatchNormalization(axis=axis)
    layer.build((None, 4, 4, 3))
    mean, variance = moments(layer, [x[:2], x[2:2], x[2:]], [None] * 3)
    axes = tuple(i for i in range(4) if i != axis % 4)
    np.testing.assert_allclose(mean, x.astype("float64").mean(axes), rtol=tolerance)
    np.testing.assert_allclose(variance, x.astype("float64").var(axes), rtol=100 * tolerance)
    assert mean.dtype == variance.dtype == dtype


def test_masked_positions_do_not_count() -> None:
    rng = np.random.default_rng(0)
    x, mask = rng.normal(size=(6, 5, 3)), rng.random((6, 5)) < 0.6
    x[~mask] = np.nan
    layer = SyncBatchNormalization()
    layer.build((None, 5, 3))
    mean, variance = moments(layer, [x[:4], x[4:]], [mask[:4], mask[4:]])
    plain_mean, plain_variance = keras.layers.BatchNormalization._moments(layer, tf.constant(x), mask)
    np.testing.assert_allclose(mean, plain_mean, rtol=1e-9)
    np.testing.assert_allclose(variance, plain_variance, rtol=1e-9)


def test_outside_a_sum_it_is_the_plain_layer() -> None:
    x = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")
    layer, plain = SyncBatchNormalization(momentum=0.7), keras.layers.BatchNormalization(momentum=0.7)
    for training in (True, False):
        np.testing.assert_array_equal(layer(x, training=training), plain(x, training=training))
    for ours, theirs in zip(layer.variables, plain.variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_in_inference_and_when_frozen_it_sums_nothing() -> None:
    def never(numbers: tf.Tensor) -> tf.Tensor:
        raise AssertionError("nothing is to be summed")

    layer = SyncBatchNormalization()
    x = np.ones((2, 3), "float32")
    with summing_with(never):
        layer(x, training=False)
        layer.trainable = False
        layer(x, training=True)


def test_names_are_those_of_plain_layers() -> None:
    def names(layer: Any) -> list[str]:
        keras.utils.clear_session(free_memory=False)
        model = keras.Sequential([keras.Input((4,)), layer(), layer(name="own"), layer()])
        return [variable.path for variable in model.variables]

    assert names(SyncBatchNormalization) == names(keras.layers.BatchNormalization)


def test_it_is_saved_and_loaded_as_itself(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((4,)), SyncBatchNormalization(momentum=0.5, scale=False)])
    model.save(tmp_path / "model.keras")
    (layer,) = synchronised_layers(keras.models.load_model(tmp_path / "model.keras"))
    assert (layer.momentum, layer.scale) == (0.5, False)


def test_layers_are_found_in_models_within_models() -> None:
    inner = keras.Sequential([keras.Input((7,)), SyncBatchNormalization()])
    model = keras.Sequential([keras.Input((4,)), SyncBatchNormalization(), keras.layers.Dense(7), inner])
    found = synchronised_layers(model)
    assert len(found) == 2
    assert exchange_length(found) == 1 + 2 * 7


def test_an_unsupported_version_of_keras_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(keras.layers.BatchNormalization, "_moments")
    with pytest.raises(InputError, match="install Keras"):
        SyncBatchNormalization()

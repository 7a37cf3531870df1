"""Elementwise operations in the traced step give the numbers that preprocessors would give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from hpcbal.training.device_input import DeviceInput
from hpcbal.training.padding import padded
from hpcbal.training.tensorflow_backend import TensorFlowBackend
from hpcbal.values.affine import Affine

Make = Callable[..., Any]
PER_CHANNEL = Affine("float32", (1 / 64, 1 / 32, 1 / 50), (0.5, 1.0, 1.5))


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_step_on_bytes_is_the_step_on_what_the_operations_make_of_them(
    make_dnn: Make, make_spec: Make, make_batch: Make, precision: str
) -> None:
    backend, (dnn, shape) = (
        TensorFlowBackend(precision=precision),
        (make_dnn("training_models:linear"), (6, 6, 3)),
    )
    batch = make_batch(7, shape=shape, dtype="uint8")
    batch.x[:] = np.random.default_rng(0).integers(0, 256, batch.x.shape)
    done = type(batch)(batch.ids, PER_CHANNEL.apply(batch.x), batch.y)
    left = backend.build(dnn, make_spec(shape, "uint8"), 5, 0, [PER_CHANNEL])
    here = backend.build(dnn, make_spec(shape, "float32"), 5, 0)
    for one, other in zip(left.compute(batch, 7).tensors, here.compute(done, 7).tensors, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5, atol=1e-6)
    assert left.evaluate(batch).loss == pytest.approx(here.evaluate(done).loss, rel=1e-6)


@pytest.mark.parametrize("shape", [(None, 3), (None, None, 3), (4, None, 3)])
def test_padding_stays_zero(make_batch: Make, shape: tuple[int | None, ...]) -> None:
    """As if samples were padded after all operations, which is what happens without `on_device`."""
    random = np.random.default_rng(1)
    lengths = [5, 2, 9]
    samples = [random.integers(0, 256, [n or k for n in shape]).astype(np.uint8) for k in lengths]
    spec = type("Spec", (), {"shape": shape, "dtype": "uint8"})()
    device_input = DeviceInput(spec, [PER_CHANNEL, Affine("float32", 2.0, 1.0)], "float32")
    batch = type(make_batch(3))(np.arange(3), samples, np.zeros(3, np.int64))
    x, _ = device_input.tensors(batch)
    assert x[0].dtype == tf.uint8
    done = [Affine("float32", 2.0, 1.0).apply(PER_CHANNEL.apply(sample)) for sample in samples]
    wanted, mask = padded(done, shape, "float32")
    inputs = tf.function(device_input.for_model, input_signature=[device_input.signature[0]])(x)
    np.testing.assert_allclose(inputs[0].numpy(), wanted, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(inputs[1].numpy(), mask)
    assert not inputs[0].numpy()[~np.broadcast_to(expanded(mask, shape), wanted.shape)].any()


def expanded(mask: Any, shape: tuple[int | None, ...]) -> Any:
    """With an axis for each axis of a sample."""
    for axis, length in enumerate(shape):
        if length is not None:
            mask = np.expand_dims(mask, axis + 1)
    return mask

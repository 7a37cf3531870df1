"""Samples on their way into a traced step: operations on the device, and memory that is used in place."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from hpcbal.data.arrays import Affine, aligned_empty
from hpcbal.data.spec import SampleSpec
from hpcbal.training.backend import LocalCollective
from hpcbal.training.keras.predicting import DeviceInput, handed_over
from hpcbal.training.keras.tensorflow_backend import TensorFlowBackend
from hpcbal.training.rank_share import padded
from hpcbal.training.step import evaluate_step, train_step

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
    spec = SampleSpec.of(shape, "uint8")
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


def test_an_aligned_batch_is_handed_over_in_place_and_any_other_as_a_copy() -> None:
    whole = aligned_empty((9, 64), "uint8")
    whole[:] = np.arange(9)[:, None]
    read_only = whole[4:6]
    read_only.flags.writeable = False
    for part in (whole, whole[2:7], whole[3:4], read_only):
        tensor = handed_over(part)
        assert address_of(tensor) == part.ctypes.data
        np.testing.assert_array_equal(tensor.numpy(), part)
    assert not read_only.flags.writeable
    for part in (whole.reshape(-1)[1:33], whole[:, :32], whole[:0]):
        tensor = handed_over(part)
        np.testing.assert_array_equal(tensor.numpy(), part)
        assert not part.size or address_of(tensor) != part.ctypes.data


def test_memory_handed_over_is_kept_until_the_tensor_is_gone() -> None:
    whole = aligned_empty((1 << 20,), "uint8")
    whole[:] = 7
    alive = weakref.ref(whole.base)
    tensor = handed_over(whole)
    del whole
    assert alive() is not None
    assert int(tf.reduce_min(tensor)) == 7
    del tensor
    assert alive() is None


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_a_step_neither_changes_nor_keeps_the_memory_of_its_batch(
    make_dnn: Make, make_spec: Make, make_batch: Make, dtype: str
) -> None:
    """Otherwise other networks would read wrong samples, or this one samples of a later block."""
    backend, shape = (
        TensorFlowBackend(precision="float32"),
        (6, 6, 4),
    )  # nothing is cast, if samples are floats
    replica = backend.build(make_dnn("training_models:normalised"), make_spec(shape, dtype), 5, 0)
    made = make_batch(16, shape=shape)
    x = aligned_empty((16, *shape), dtype)
    x[:] = 10 * np.abs(made.x)
    before, batch = x.copy(), type(made)(made.ids, x, made.y)
    train_step(replica, batch, 16, LocalCollective())
    losses = [evaluate_step(replica, batch, LocalCollective()).sums.loss]
    np.testing.assert_array_equal(x, before)
    x[:] = 0  # the ring is written again
    x[:] = before
    losses.append(evaluate_step(replica, batch, LocalCollective()).sums.loss)
    assert losses[0] == losses[1]
    alive = weakref.ref(x.base)
    del x, batch
    gc.collect()
    assert alive() is None


def address_of(tensor: Any) -> int:
    """Where its numbers lie: the method `numpy` copies, DLPack does not."""

    class Exported:
        def __dlpack__(self, **_: Any) -> Any:
            return tf.experimental.dlpack.to_dlpack(tensor)

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0  # the host

    return int(np.from_dlpack(Exported()).ctypes.data)

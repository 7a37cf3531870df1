"""Predict batches in host memory with a Keras model; samples that differ in length are padded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from hpcbal.data.arrays import Affine, is_aligned
from hpcbal.data.spec import CLASS_LABEL, LabelSpec, SampleSpec
from hpcbal.training.backend import Batch
from hpcbal.training.padding import padded, varying_axes
from hpcbal.training.weights import Array

Tensors: TypeAlias = tuple[tf.Tensor, ...]
"""Samples, and their mask if they were padded; or labels, and the weights of the samples if they have any."""


def handed_over(array: Array) -> tf.Tensor:
    """A tensor of the host with the content of `array`, which must not change while the tensor is in use.

    The tensor uses the memory of the array in place if that is aligned like TensorFlow's own; it is a copy
    otherwise. TensorFlow never writes to memory that it does not own.
    """
    flags = array.flags
    if not (flags.c_contiguous and array.size and is_aligned(array)):
        return tf.convert_to_tensor(array)
    if not flags.writeable:  # in the ring; this version of DLPack cannot say that it is read-only
        array = array.view()
        array.flags.writeable = True
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


class DeviceInput:
    """The input of one replica: samples as they come from the data plane, turned into the model's own.

    Attributes:
        signature: what the traced functions take: samples with their mask if there is one, and labels with
            weights if there are any.

    Args:
        sample: shape and type of one sample, as batches hold it.
        on_device: applied in order within the traced step, before the cast to the model's type.
        dtype: of the model.
        label: shape and type of one label; whole numbers become int64, others the model's type.
        sample_weights: how much a sample counts in the loss, by id, shape (samples of the dataset,); None: 1.
    """

    def __init__(
        self,
        sample: SampleSpec,
        on_device: Sequence[Affine],
        dtype: str,
        label: LabelSpec = CLASS_LABEL,
        sample_weights: Array | None = None,
    ) -> None:
        self._shape = tuple(sample.shape)
        self._sample_dtype = sample.dtype
        self._on_device = tuple(on_device)
        self._dtype = dtype
        self._varying = varying_axes(self._shape)
        samples: tuple[tf.TensorSpec, ...] = (tf.TensorSpec([None, *self._shape], sample.dtype),)
        if self._varying:
            samples += (tf.TensorSpec([None, *(None for _ in self._varying)], tf.bool),)
        self._label_shape = tuple(label.shape)
        self._label_dtype = "int64" if np.dtype(label.dtype).kind in "iu" else dtype
        self._sample_weights = None if sample_weights is None else np.asarray(sample_weights, dtype)
        labels: tuple[tf.TensorSpec, ...] = (tf.TensorSpec([None, *label.shape], self._label_dtype),)
        if self._sample_weights is not None:
            labels += (tf.TensorSpec([None], dtype),)
        self.signature = (samples, labels)

    def tensors(self, batch: Batch) -> tuple[Tensors, Tensors]:
        """The samples, with their mask if they were padded, and the labels, with weights if there are any.

        See `handed_over`.
        """
        if isinstance(batch.x, list):
            arrays: tuple[Array, ...] = padded(batch.x, self._shape, self._sample_dtype, batch.padding_limit)
        else:
            arrays = (np.asarray(batch.x, dtype=self._sample_dtype),)
        labels: tuple[Array, ...] = (np.asarray(batch.y, self._label_dtype).reshape(-1, *self._label_shape),)
        if self._sample_weights is not None:
            labels += (self._sample_weights[batch.ids],)
        return tuple(map(handed_over, arrays)), tuple(map(handed_over, labels))

    def for_model(self, x: Tensors) -> Tensors:
        """Return the model's input: samples in its own type, and the mask; traced with the step."""
        samples = x[0]
        for operation in self._on_device:
            samples = tf.cast(samples, operation.dtype) * operation.factor - operation.shift
        if self._on_device and self._varying:  # padding stays zero, as if it came after the operations
            samples = tf.where(self._within(x[1]), samples, tf.zeros([], samples.dtype))
        return (tf.cast(samples, self._dtype), *x[1:])

    def _within(self, mask: tf.Tensor) -> tf.Tensor:
        """The mask with an axis for each axis of the samples, to broadcast."""
        for axis in range(len(self._shape)):
            if axis not in self._varying:
                mask = tf.expand_dims(mask, axis + 1)
        return mask


def predictor(
    infer: Callable[..., Any], device_input: DeviceInput, link: Callable[[Any], Any]
) -> Callable[[Batch], Array]:
    """A function that returns the predictions of a model for a batch, float64, shape (n, ...).

    TensorFlow traces it when it is called for the first time: a run that only trains never does.

    Args:
        infer: calls the model in inference.
        device_input: turns a batch into what the model is called with.
        link: turns the model's outputs into predictions, such as logits into probabilities.
    """

    def traced(x: Tensors) -> tf.Tensor:
        return link(tf.cast(infer(*device_input.for_model(x)), tf.float64))

    samples, _ = device_input.signature
    predictions_of = tf.function(traced, input_signature=[samples], autograph=False)

    def predict(batch: Batch) -> Array:
        x, _ = device_input.tensors(batch)
        return np.array(predictions_of(x).numpy())  # a copy: it outlives the tensor

    return predict

"""Predict batches in host memory with a Keras model; samples that differ in length are padded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from hpcbal.data.arrays import Affine, aligned_empty, is_aligned
from hpcbal.data.spec import CLASS_LABEL, UNNAMED, LabelSpec, SampleSpec
from hpcbal.training.backend import Batch, Predictions
from hpcbal.training.rank_share import padded, varying_axes
from hpcbal.training.weights import Array

Tensors: TypeAlias = tuple[tf.Tensor, ...]
"""The arrays of samples, and their mask if they were padded; or labels of outputs, and weights if any."""


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
        signature: what the traced functions take: the arrays of samples with their mask if there is one, and
            labels with weights if there are any.

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
        self._sample, self._label = sample, label
        self._shape = tuple(sample.shape)
        self._on_device = tuple(on_device)
        self._dtype = dtype
        self._varying = varying_axes(self._shape)
        arrays = sample.by_name.values()
        samples = tuple(tf.TensorSpec([None, *each.shape], each.dtype) for each in arrays)
        if self._varying:
            samples += (tf.TensorSpec([None, *(None for _ in self._varying)], tf.bool),)
        self._label_dtypes = {
            name: "int64" if np.dtype(each.dtype).kind in "iu" else dtype
            for name, each in label.by_name.items()
        }
        self._sample_weights = None if sample_weights is None else np.asarray(sample_weights, dtype)
        labels = tuple(
            tf.TensorSpec([None, *each.shape], self._label_dtypes[name])
            for name, each in label.by_name.items()
        )
        if self._sample_weights is not None:
            labels += (tf.TensorSpec([None], dtype),)
        self.signature = (samples, labels)

    def tensors(self, batch: Batch) -> tuple[Tensors, Tensors]:
        """The samples, with their mask if they were padded, and the labels, with weights if there are any.

        See `handed_over`. Arrays with names are copied out of the records of their samples.
        """
        if isinstance(batch.x, list):
            arrays: tuple[Array, ...] = padded(batch.x, self._shape, self._sample.dtype, batch.padding_limit)
        else:
            parts = self._sample.unpacked(np.asarray(batch.x, self._sample.dtype))
            arrays = tuple(map(contiguous, parts.values()))
        labels = tuple(self.labels_of(batch.y).values())
        if self._sample_weights is not None:
            labels += (self._sample_weights[batch.ids],)
        return tuple(map(handed_over, arrays)), tuple(map(handed_over, labels))

    def labels_of(self, y: Array) -> dict[str, Array]:
        """Labels as losses and metrics get them, by the name of their output."""
        return {
            name: contiguous(
                np.asarray(part, self._label_dtypes[name]).reshape(-1, *self._label.by_name[name].shape)
            )
            for name, part in self._label.unpacked(y).items()
        }

    def by_output(self, y: Tensors) -> dict[str, tf.Tensor]:
        """The labels in such tensors, by the name of their output; traced."""
        return dict(zip(self._label_dtypes, y, strict=False))

    def weights(self, y: Tensors) -> tf.Tensor | None:
        """The weights of the samples in such tensors; None if all count 1; traced."""
        return y[-1] if self._sample_weights is not None else None

    def for_model(self, x: Tensors) -> tuple[Any, ...]:
        """Return the model's input: samples in its own type, and the mask; traced with the step.

        Samples of named arrays are a dict.
        """
        names = self._sample.by_name
        arrays = {name: self._prepared(name, x) for name in names}
        return (arrays.get(UNNAMED, arrays), *x[len(names) :])

    def _prepared(self, name: str, x: Tensors) -> tf.Tensor:
        samples = x[list(self._sample.by_name).index(name)]
        operations = [operation for operation in self._on_device if operation.of == name]
        for operation in operations:
            samples = tf.cast(samples, operation.dtype) * operation.factor - operation.shift
        if operations and self._varying:  # padding stays zero, as if it came after the operations
            samples = tf.where(self._within(x[1]), samples, tf.zeros([], samples.dtype))
        return tf.cast(samples, self._dtype)

    def _within(self, mask: tf.Tensor) -> tf.Tensor:
        """The mask with an axis for each axis of the samples, to broadcast."""
        for axis in range(len(self._shape)):
            if axis not in self._varying:
                mask = tf.expand_dims(mask, axis + 1)
        return mask


def contiguous(array: Array) -> Array:
    """Return an array as it is, or a copy without gaps: one of several arrays in the records of samples."""
    if array.flags.c_contiguous:
        return array
    copy = aligned_empty(array.shape, array.dtype.str)
    copy[...] = array
    return copy


def predictor(
    infer: Callable[..., Any], device_input: DeviceInput, link: Callable[[Any], Any]
) -> Callable[[Batch], Predictions]:
    """A function that returns the predictions of a model for a batch, float64, shape (n, ...).

    TensorFlow traces it when it is called for the first time: a run that only trains never does.

    Args:
        infer: calls the model in inference.
        device_input: turns a batch into what the model is called with.
        link: turns the model's outputs into predictions, such as logits into probabilities.
    """

    def traced(x: Tensors) -> Any:
        outputs = infer(*device_input.for_model(x))
        return link(tf.nest.map_structure(lambda each: tf.cast(each, tf.float64), outputs))

    samples, _ = device_input.signature
    predictions_of = tf.function(traced, input_signature=[samples], autograph=False)

    def predict(batch: Batch) -> Predictions:
        x, _ = device_input.tensors(batch)
        # Copies: they outlive the tensors.
        found: Predictions = tf.nest.map_structure(lambda each: np.array(each.numpy()), predictions_of(x))
        return found

    return predict

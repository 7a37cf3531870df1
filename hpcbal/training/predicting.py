"""What a Keras model predicts for a batch, in inference mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hpcbal.training.arrays import Array
from hpcbal.training.backend import Batch
from hpcbal.training.device_input import DeviceInput, Tensors


def predictor(
    model: keras.Model, device_input: DeviceInput, link: Callable[[Any], Any]
) -> Callable[[Batch], Array]:
    """A function that returns the predictions of `model` for a batch, float64, shape (n, ...).

    TensorFlow traces it when it is called for the first time: a run that only trains never does.

    Args:
        model: built.
        device_input: turns a batch into what the model is called with.
        link: turns the model's outputs into predictions, such as logits into probabilities.
    """

    def traced(x: Tensors) -> tf.Tensor:
        return link(tf.cast(model(*device_input.for_model(x), training=False), tf.float64))

    samples, _ = device_input.signature
    predictions_of = tf.function(traced, input_signature=[samples], autograph=False)

    def predict(batch: Batch) -> Array:
        x, _ = device_input.tensors(batch)
        return np.array(predictions_of(x).numpy())  # a copy: it outlives the tensor

    return predict

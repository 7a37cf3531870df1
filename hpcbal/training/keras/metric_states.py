"""The states behind a metric: sums over samples, computed within a step without changing the metric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from hpcbal.training.metric import AccuracyOfClasses, Metric
from hpcbal.training.weights import Array


class Accuracy(AccuracyOfClasses):
    """The accuracy of classes, with Keras."""

    def states(self, y: Any, predictions: Any) -> Sequence[Any]:
        if len(y.shape) > 1:
            y = keras.ops.argmax(y, axis=-1)
        found = keras.ops.argmax(predictions, axis=-1)
        hits = keras.ops.equal(keras.ops.cast(found, "int64"), keras.ops.cast(y, "int64"))
        return [keras.ops.sum(keras.ops.cast(hits, "int64"))]


class KerasMetric(Metric):
    """A metric of Keras, or one that a user wrote for Keras.

    Its states after samples, less its states before any, are what these samples add. Keras computes them
    without changing the metric.

    Args:
        metric: not updated yet.
    """

    def __init__(self, metric: keras.metrics.Metric) -> None:
        self._metric = metric
        self._start: list[Array] = []

    def build(self, y: Any, predictions: Any) -> None:
        predictions = self._as_taken(predictions)
        self._metric.update_state(y, predictions)  # some make their variables only now
        self._metric.reset_state()
        self._start = [variable.numpy().copy() for variable in self._metric.variables]
        self.num_states = sum(array.size for array in self._start)

    def why_not_additive(self, y: Any, predictions: Any) -> str:
        if not self._start:
            return "it has no states (keras.metrics.Metric.add_variable)"
        if any(array.any() for array in self._start):
            return "its states do not begin at zero"
        return super().why_not_additive(y, predictions)

    def states(self, y: Any, predictions: Any) -> Sequence[Any]:
        start = [
            keras.ops.convert_to_tensor(array, variable.dtype)
            for array, variable in zip(self._start, self._metric.variables, strict=True)
        ]
        found: Sequence[Any] = self._metric.stateless_update_state(start, y, self._as_taken(predictions))
        return found

    def _as_taken(self, predictions: Any) -> Any:
        """Return predictions as they are, except that a metric in float32 gets those of float64 in float32.

        Like Keras, which leaves it to a metric to convert them: the dtype of a metric is that of its states,
        and may be int. Kernels of TensorFlow, such as that of top-k metrics, take no float64.
        """
        is_wide = keras.backend.standardize_dtype(predictions.dtype) == "float64"
        if is_wide and self._metric.dtype == "float32":
            return keras.ops.cast(predictions, "float32")
        return predictions

    def result(self, states: Array, count: int) -> float:
        values, begin = [], 0
        for start, variable in zip(self._start, self._metric.variables, strict=True):
            part = states[begin : begin + start.size].reshape(start.shape)
            values.append(keras.ops.convert_to_tensor(part.astype(start.dtype), variable.dtype))
            begin += start.size
        found = self._metric.stateless_result(values)
        for variable, value in zip(self._metric.variables, values, strict=True):
            if found is variable:  # its own numbers, not these
                found = value
        if isinstance(found, dict):
            raise TypeError(
                f"its result is a dict ({', '.join(map(str, found))}), allowed: a number or an array"
            )
        return float(np.mean(np.asarray(found, np.float64)))


def accuracy_of_whole_labels(y: Any, predictions: Any) -> Any:
    """Compare predictions with labels if the loss does not say what the predictions are; traced.

    With one more axis than the labels, of length 2 or more, predictions are numbers for each class; otherwise
    probabilities of yes.

    Args:
        y: whole numbers, shape (n, ...).
        predictions: shape (n, ..., num_classes), (n, ...) or (n, ..., 1).

    Returns: 1 for right, 0 for wrong, shape (n, ...).

    Source: the rule of Keras for the metric `accuracy` (keras/src/trainers/compile_utils.py, get_metric).
    """
    if len(predictions.shape) == len(y.shape) + 1 and predictions.shape[-1] > 1:
        return keras.metrics.sparse_categorical_accuracy(y, predictions)
    return keras.metrics.binary_accuracy(y, predictions)

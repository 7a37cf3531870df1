"""The loss and the metrics of a Keras model: sums over samples that add up over ranks and steps."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, cast

import keras
import numpy as np

from hpcbal.config.schema.dnn import DnnConfig
from hpcbal.data.spec import LabelSpec
from hpcbal.errors import InputError
from hpcbal.training.objective import AccuracyOfClasses, LossFunction, Metric, Objective, Probe
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


class KerasObjective(Objective):
    """Loss and metrics of one DNN, with classes and functions of Keras, traced with its steps."""

    def __init__(self, dnn: DnnConfig, label: LabelSpec, num_classes: int, ending: str | None) -> None:
        self._dtype = keras.config.floatx()
        super().__init__(dnn, label, num_classes, ending)

    def try_on(self, probe: Probe) -> None:
        # Keras remembers the logits of a softmax in an attribute, which parts of the tensor would not have.
        super().try_on(Probe(probe.y, keras.ops.convert_to_tensor(np.asarray(probe.outputs))))

    def _cross_entropy(self, y: Any, logits: Any) -> Any:
        smoothing, num_classes = self._smoothing, self._num_classes
        if self._label.is_class and not smoothing:
            return keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
        if self._label.is_class:
            y = keras.ops.one_hot(y, num_classes, dtype=logits.dtype)
        return keras.losses.categorical_crossentropy(y, logits, from_logits=True, label_smoothing=smoothing)

    def _made_loss(self, kind: str, args: Mapping[str, Any]) -> LossFunction:
        made = getattr(keras.losses, kind)(reduction="none", dtype=self._dtype, **args)
        return cast("LossFunction", made)

    def _own_loss(self, name: str, found: Any, args: Mapping[str, Any]) -> LossFunction:
        if inspect.isclass(found):
            takes_reduction = issubclass(found, keras.losses.Loss)
            own = {"reduction": "none", **args} if takes_reduction else args
            return cast("LossFunction", found(**own))
        return lambda y, outputs: found(y, outputs, **args)

    def _accuracy_of_classes(self) -> Metric:
        return Accuracy()

    def _accuracy_of_whole_labels(self) -> Metric:
        return KerasMetric(keras.metrics.MeanMetricWrapper(accuracy_of_whole_labels, dtype=self._dtype))

    def _made_metric(self, kind: str, args: Mapping[str, Any]) -> Metric:
        dtype = "float32" if "TopK" in kind else self._dtype  # TensorFlow's kernel takes no other
        return KerasMetric(getattr(keras.metrics, kind)(dtype=dtype, **args))

    def _own_metric(self, name: str, found: Any, args: Mapping[str, Any]) -> Metric:
        make = found if inspect.isclass(found) else partial(keras.metrics.MeanMetricWrapper, found)
        found = make(**args)
        if not isinstance(found, keras.metrics.Metric):
            raise InputError(
                f"{self._who}: metric {name}: it makes a {type(found).__name__}, allowed: a "
                "keras.metrics.Metric, or a function of labels and predictions that returns a number for "
                "each sample"
            )
        return KerasMetric(found)

    def _arguments(self, what: Literal["loss", "metric"], kind: str) -> Sequence[str]:
        module = keras.losses if what == "loss" else keras.metrics
        taken = inspect.signature(getattr(module, kind).__init__).parameters
        return [name for name in taken if name not in ("self", "name", "dtype", "reduction")]

    def _tensor(self, values: Any) -> Any:
        return keras.ops.convert_to_tensor(values)

    def _like(self, values: Any, tensor: Any) -> Any:
        return keras.ops.cast(values, tensor.dtype)

    def _mean(self, values: Any, axes: tuple[int, ...]) -> Any:
        return keras.ops.mean(values, axis=axes)

    def _sum_of_last(self, values: Any) -> Any:
        return keras.ops.sum(values, axis=-1)

    def _take(self, values: Any, index: Any) -> Any:
        return keras.ops.take(values, index)

    def _softmax(self, values: Any) -> Any:
        return keras.ops.softmax(values, axis=-1)

    def _sigmoid(self, values: Any) -> Any:
        return keras.ops.sigmoid(values)

    def _log(self, values: Any) -> Any:
        return keras.ops.log(keras.ops.maximum(values, float(np.finfo(self._dtype).eps)))

    def _array(self, tensor: Any) -> Array:
        return np.asarray(tensor)

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
from hpcbal.training.keras.metric_states import Accuracy, KerasMetric, accuracy_of_whole_labels
from hpcbal.training.metric import Metric
from hpcbal.training.objective import Objective, Probe
from hpcbal.training.objective_library import LossFunction
from hpcbal.training.weights import Array


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
        return cast(LossFunction, made)

    def _own_loss(self, name: str, found: Any, args: Mapping[str, Any]) -> LossFunction:
        if inspect.isclass(found):
            takes_reduction = issubclass(found, keras.losses.Loss)
            own = {"reduction": "none", **args} if takes_reduction else args
            return cast(LossFunction, found(**own))
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

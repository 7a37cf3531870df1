"""The objective and the metrics of a DNN: loss, metrics, and how samples count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Strict, Tag, model_validator

from hpcbal.config.schema.section import (
    ARGS_ALLOWED,
    LEAST,
    MOST,
    Section,
    is_import_path,
    key,
    wrong,
)
from hpcbal.config.source.meant import did_you_mean
from hpcbal.events.history import (
    KERAS_METRICS,
    LESS_IS_BETTER,
    LOSS,
    OTHER_FIELDS,
    VALIDATION,
    is_more_better,
    shows_more_better,
)

KERAS_LOSSES: Mapping[str, str] = {
    "sparse_categorical_crossentropy": "SparseCategoricalCrossentropy",
    "categorical_crossentropy": "CategoricalCrossentropy",
    "categorical_focal_crossentropy": "CategoricalFocalCrossentropy",
    "categorical_hinge": "CategoricalHinge",
    "binary_crossentropy": "BinaryCrossentropy",
    "binary_focal_crossentropy": "BinaryFocalCrossentropy",
    "hinge": "Hinge",
    "squared_hinge": "SquaredHinge",
    "mean_squared_error": "MeanSquaredError",
    "mean_absolute_error": "MeanAbsoluteError",
    "mean_absolute_percentage_error": "MeanAbsolutePercentageError",
    "mean_squared_logarithmic_error": "MeanSquaredLogarithmicError",
    "huber": "Huber",
    "log_cosh": "LogCosh",
    "poisson": "Poisson",
    "kl_divergence": "KLDivergence",
    "cosine_similarity": "CosineSimilarity",
    "dice": "Dice",
    "tversky": "Tversky",
    "mse": "MeanSquaredError",
    "mae": "MeanAbsoluteError",
    "mape": "MeanAbsolutePercentageError",
    "msle": "MeanSquaredLogarithmicError",
}
"""Losses that a configuration may name: the class in `keras.losses`."""

Predicted = Literal["classes", "labels", "values"]
"""Predictions of a DNN for an item: one class of several, whether a label applies, or a value."""

_PREDICTED: Mapping[str, Predicted] = {
    "SparseCategoricalCrossentropy": "classes",
    "CategoricalCrossentropy": "classes",
    "CategoricalFocalCrossentropy": "classes",
    "BinaryCrossentropy": "labels",
    "BinaryFocalCrossentropy": "labels",
}
"""Predictions with a loss of Keras; with other losses, values."""

_OF_CLASSES = frozenset({"accuracy", "sparse_categorical_accuracy"})
"""Metrics that say, where the module computes the loss, that its outputs are logits of classes."""

MODULE_LOSS = "module"
"""The name of the loss that a module of PyTorch computes itself, in its method `loss`."""

_OWN = "or an import path package.module:name"
_OF_OUTPUTS = "; or a mapping {output: "
LOSS_ALLOWED = f"null, {', '.join(KERAS_LOSSES)}, {MODULE_LOSS}, {_OWN}{_OF_OUTPUTS}loss}}"
METRICS_ALLOWED = f"null or a list of {', '.join(KERAS_METRICS)}, {_OWN}{_OF_OUTPUTS}list}}"
LOSS_WEIGHTS_ALLOWED = "a mapping {output: weight above 0}"
_METRIC_NAME = "letters, digits and _"
_WORDS = ", ".join(LESS_IS_BETTER)
WEIGHTS_ALLOWED = "null, balanced, or {class: weight, 0 or more}"


def _from_name(value: Any) -> Any:
    """`huber` is short for `{name: huber}`."""
    return {"name": value} if isinstance(value, str) else value


class LossConfig(Section):
    """The loss that training minimises; it is averaged over the samples."""

    name: str = key(
        ...,
        "A loss of Keras, the method loss of a PyTorch module, or a callable of your own.",
        LOSS_ALLOWED,
        min_length=1,
    )
    args: Mapping[str, Any] = key({}, "Arguments of the loss.", ARGS_ALLOWED)

    @property
    def is_of_module(self) -> bool:
        """Whether the model computes it itself."""
        return self.name == MODULE_LOSS

    @model_validator(mode="after")
    def _check(self) -> LossConfig:
        if self.is_of_module and self.args:
            raise wrong(
                "args", "got arguments, allowed with module: none; give them to the model, as its args"
            )
        if self.name not in (*KERAS_LOSSES, MODULE_LOSS) and not is_import_path(self.name):
            hint = did_you_mean(self.name, (*KERAS_LOSSES, MODULE_LOSS))
            raise wrong("name", f"got {self.name!r}{hint}, allowed: {LOSS_ALLOWED}")
        if "reduction" in self.args:
            raise wrong("args", "got reduction, allowed: other arguments; hpcbal sums over samples itself")
        return self


class MetricConfig(Section):
    """A number that is measured in every epoch, on the training and on the validation samples."""

    name: str = key(..., "A metric of Keras, or a callable of your own.", METRICS_ALLOWED, min_length=1)
    args: Mapping[str, Any] = key({}, "Arguments of the metric.", ARGS_ALLOWED)
    shown_as: str | None = key(
        None,
        "Its name in results and in stop.monitor; null: the name, or the last part of the import path.",
        f"null, or {_METRIC_NAME}",
        pattern=r"^[A-Za-z][A-Za-z0-9_]*$",
        max_length=60,
    )

    @property
    def key(self) -> str:
        """The name of the metric in the results of an epoch."""
        return self.shown_as or self.name.rpartition(":")[2].rpartition(".")[2]

    @model_validator(mode="after")
    def _check(self) -> MetricConfig:
        if self.name not in KERAS_METRICS and not is_import_path(self.name):
            hint = did_you_mean(self.name, KERAS_METRICS)
            raise wrong("name", f"got {self.name!r}{hint}, allowed: {METRICS_ALLOWED}")
        better = is_more_better(self.name) if self.name in KERAS_METRICS else None
        if better is not None and shows_more_better(self.key) != better:
            raise wrong(
                "shown_as",
                f"got {self.shown_as!r}, but {'more' if better else 'less'} of {self.name} is better, "
                f"allowed: a name {'without' if better else 'with one of'} {_WORDS}",
            )
        if self.key == LOSS or self.key.startswith(VALIDATION) or self.key in OTHER_FIELDS:
            raise wrong(
                "shown_as",
                f"the metric would be called {self.key!r}, allowed: any name but val_…, loss, "
                f"{', '.join(sorted(OTHER_FIELDS))}",
            )
        return self


class _HasObjective(Protocol):
    @property
    def loss(self) -> LossConfig | Mapping[str, LossConfig | None] | None: ...
    @property
    def metrics(self) -> Sequence[MetricConfig] | Mapping[str, Sequence[MetricConfig]] | None: ...


def predicted_by(dnn: _HasObjective) -> Predicted:
    """Return what a DNN with one output predicts: by its loss, or its metrics if the module computes that."""
    loss = dnn.loss
    if loss is None:
        return "classes"
    assert not isinstance(loss, Mapping), "one output, see `DnnConfig.of_output`"
    if loss.name == MODULE_LOSS:
        metrics = dnn.metrics or ()
        assert not isinstance(metrics, Mapping)
        return "classes" if any(metric.name in _OF_CLASSES for metric in metrics) else "values"
    return _PREDICTED.get(KERAS_LOSSES.get(loss.name, ""), "values")


def _distinct(metrics: tuple[MetricConfig, ...]) -> tuple[MetricConfig, ...]:
    keys = [metric.key for metric in metrics]
    for name in keys:
        if keys.count(name) > 1:
            raise wrong("", f"got two metrics called {name!r}; give one of them another shown_as")
    return metrics


def _class_numbers(value: Any) -> Any:
    """Convert classes to int: JSON and `--set` have only text as keys."""
    if not isinstance(value, Mapping):
        return value
    return {
        int(k) if isinstance(k, str) and k.isdecimal() and len(k) < 10 else k: v for k, v in value.items()
    }


def _kind_of_loss(value: Any) -> str:
    """Whether there is one loss, or one for each output; no output may be called name or args."""
    if not isinstance(value, Mapping) or not value or value.keys() & LossConfig.model_fields.keys():
        return ONE
    return OF_OUTPUTS


def _kind_of_metrics(value: Any) -> str:
    return OF_OUTPUTS if isinstance(value, Mapping) else ONE


ONE, OF_OUTPUTS = "<one>", "<of outputs>"
"""Names of the two forms of losses, metrics and label_smoothing, in the places of pydantic's errors."""

_Loss = Annotated[LossConfig, BeforeValidator(_from_name)]
Loss = Annotated[
    Annotated[_Loss, Tag(ONE)] | Annotated[Mapping[str, _Loss | None], Tag(OF_OUTPUTS)],
    Discriminator(_kind_of_loss),
]
Metric = Annotated[MetricConfig, BeforeValidator(_from_name)]
_Metrics = Annotated[tuple[Metric, ...], AfterValidator(_distinct), Strict(False)]
Metrics = Annotated[
    Annotated[_Metrics, Tag(ONE)] | Annotated[Mapping[str, _Metrics], Tag(OF_OUTPUTS)],
    Discriminator(_kind_of_metrics),
]
LossWeights = Mapping[str, Annotated[float, Field(ge=LEAST, le=MOST)]]
ClassWeights = Annotated[
    Mapping[Annotated[int, Field(ge=0, le=MOST)], Annotated[float, Field(ge=0.0, le=MOST)]],
    BeforeValidator(_class_numbers),
]
ClassWeighting = Literal["balanced"] | ClassWeights
_Share = Annotated[float, Field(ge=0.0, lt=1.0)]
Smoothing = Annotated[
    Annotated[_Share, Tag(ONE)] | Annotated[Mapping[str, _Share], Tag(OF_OUTPUTS)],
    Discriminator(_kind_of_metrics),
]
SMOOTHING_ALLOWED = "0 <= label_smoothing < 1, or such a number for some outputs: {output: number}"

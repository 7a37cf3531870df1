"""The loss and the metrics of a model as sums over samples, whatever library computes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hpcbal.config.imports import load_object
from hpcbal.config.schema.dnn import DnnConfig
from hpcbal.config.schema.objective import (
    KERAS_LOSSES,
    MODULE_LOSS,
    LossConfig,
    MetricConfig,
    Predicted,
    predicted_by,
)
from hpcbal.data.spec import LabelSpec
from hpcbal.errors import HpcbalError, InputError, UserCodeError
from hpcbal.events.history import KERAS_METRICS, LOSS
from hpcbal.training.backend import Sums, are_shares
from hpcbal.training.groups import USER_ERRORS
from hpcbal.training.metric import Metric
from hpcbal.training.objective_library import LossFunction, TensorLibrary
from hpcbal.training.weights import Array
from hpcbal.user_code import summary

Link = Literal["softmax", "sigmoid", "identity"]
"""The function from the outputs of a model to the predictions that metrics see."""

_LINK_OF: Mapping[Predicted, Link] = {"classes": "softmax", "labels": "sigmoid", "values": "identity"}
"""From outputs to predictions, unless the model ends in probabilities already."""

_SQUASHED = ("softmax", "sigmoid")
"""Activations whose outputs are probabilities."""

_OVER_A_SAMPLE = ("Dice", "Tversky")
"""Losses that by default are one number for a whole batch; here, for each sample."""

MAX_STATES = 65_536
"""Sums behind the metrics of a DNN: they travel with every step."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A few samples on which loss and metrics are tried.

    Attributes:
        y: labels, shape (n, *label shape).
        outputs: of a model for these samples, shape (n, ...).
    """

    y: Any
    outputs: Any


class Objective(TensorLibrary):
    """Loss and metrics of one DNN, computed with its steps.

    It has a subclass for each library of tensors.

    Attributes:
        link: what turns the model's outputs into probabilities or predictions.
        takes_classes: whether the default loss is used: outputs are the logits of classes.
        metric_names: names of the metrics in results, in order.
        num_states: number of sums behind the metrics.

    Args:
        dnn: its loss, metrics and weights of classes.
        label: shape and type of a label.
        num_classes: number of classes, if labels are classes.
        ending: activation at the end of the model, such as "softmax" or "linear"; None if unknown. Decides
            whether a cross entropy takes logits, unless the arguments of the loss say so, and whether outputs
            of a model that computes its loss itself are logits.

    Raises:
        InputError: if the loss or a metric does not fit the labels, or cannot be made.
        UserCodeError: if a user's callable raises.
    """

    def __init__(self, dnn: DnnConfig, label: LabelSpec, num_classes: int, ending: str | None) -> None:
        self._who = f"DNN {dnn.name}"
        self._label = label
        self._num_classes = num_classes
        assert not isinstance(dnn.label_smoothing, Mapping), "one output, see `DnnConfig.of_output`"
        self._smoothing = dnn.label_smoothing
        self.takes_classes = dnn.loss is None
        self.link: Link = "softmax"
        assert not isinstance(dnn.loss, Mapping), "one output, see `DnnConfig.of_output`"
        kind = None if dnn.loss is None else KERAS_LOSSES.get(dnn.loss.name)
        self._keras_loss = None if dnn.loss is None or kind is None else dnn.loss.name
        self._is_own_loss = dnn.loss is not None and kind is None
        self._predicts = predicted_by(dnn)
        if dnn.loss is None:
            self._check_default_loss(label)
            self._loss: LossFunction = self._cross_entropy
        elif dnn.loss.is_of_module:
            if self._smoothing:
                raise self._no_smoothing(dnn.loss.name)
            self.link = "identity" if ending in _SQUASHED else _LINK_OF[self._predicts]
            self._loss = self._loss_of_module()
        else:
            self._loss = self._named_loss(dnn.loss, ending)
        self._class_weights = self._weights_of_classes(dnn.class_weights)
        self._metrics: list[tuple[str, Metric]] = []
        settings = dnn.metrics
        assert not isinstance(settings, Mapping)
        if settings is None and self.takes_classes:
            self._metrics.append(("accuracy", self._accuracy_of_classes()))
        for metric in settings or ():
            self._metrics.append((metric.key, self._named_metric(metric)))
        self.metric_names = tuple(name for name, _ in self._metrics)
        self.num_states = 0

    def try_on(self, probe: Probe) -> None:
        """Compute loss and metrics of a few samples, and check that they can be summed over samples.

        Must be called once, before the first step.

        Raises:
            InputError: if the loss is not one number for each sample that depends on this sample only, or a
                metric's states do not add up.
            UserCodeError: if a user's loss or metric raises.
        """
        self._check_outputs(tuple(probe.outputs.shape[1:]))
        doing = f"{self._who}: computing the loss of {len(probe.y)} samples"
        with errors_of_user_code(doing):
            whole = self._array(self._loss_of_samples(probe.y, probe.outputs))
            parts = np.concatenate(
                [
                    self._array(self._loss_of_samples(probe.y[i : i + 1], probe.outputs[i : i + 1]))
                    for i in range(len(probe.y))
                ]
            )
        if whole.shape != parts.shape or not np.allclose(whole, parts, rtol=1e-3, atol=1e-5, equal_nan=True):
            raise InputError(
                f"{self._who}: loss: the loss of a sample depends on the other samples of the batch, "
                f"allowed: a loss for each sample by itself (labels have shape {self._label.shape}, outputs "
                f"{tuple(probe.outputs.shape[1:])})"
            )
        predictions = self.predictions(probe.outputs)
        for name, metric in self._metrics:
            seen = probe.outputs if metric.takes_outputs else predictions
            with errors_of_user_code(f"{self._who}: metric {name}"):
                metric.build(probe.y, seen)
            with errors_of_user_code(f"{self._who}: metric {name}"):
                why = metric.why_not_additive(probe.y, seen)
                metric.result(metric.sums(probe.y, seen), len(probe.y))
            if why:
                raise InputError(
                    f"{self._who}: metric {name}: {why}, allowed: metrics whose states add up over samples, "
                    "because the samples of a step lie on several ranks"
                )
        self.num_states = sum(metric.num_states for _, metric in self._metrics)
        if self.num_states > MAX_STATES:
            raise InputError(
                f"{self._who}: metrics: their states are {self.num_states} numbers, allowed: at most "
                f"{MAX_STATES}, because they travel with every step"
            )

    def losses(self, y: Any, sample_weights: Any = None, *, outputs: Any, training: bool) -> Any:
        """The loss of each sample times its weight, and while training that of its class; traced.

        Returns: shape (n,).
        """
        return self.weighted(self._loss_of_samples(y, outputs), y, sample_weights, training=training)

    def weighted(self, losses: Any, y: Any, sample_weights: Any, *, training: bool) -> Any:
        """Losses of samples, shape (n,), times the same weights; traced."""
        if sample_weights is not None:
            losses = losses * self._like(sample_weights, losses)
        if training and self._class_weights is not None:
            weights = self._like(self._class_weights, losses)
            if self._label.is_class:
                losses = losses * self._take(weights, y)
            else:
                losses = losses * self._sum_of_last(self._like(y, losses) * weights)
        return losses

    def states(self, y: Any, outputs: Any) -> list[Any]:
        """The sums behind the metrics, as tensors of any shape; traced."""
        found: list[Any] = []
        predictions = None
        for _, metric in self._metrics:
            if metric.takes_outputs:
                found += metric.states(y, outputs)
                continue
            if predictions is None:
                predictions = self.predictions(outputs)
            found += metric.states(y, predictions)
        return found

    def sum_of(self, losses: Any) -> Any:
        """The sum of losses, shape (n,); traced."""
        return self._sum_of_last(losses)

    def predictions(self, outputs: Any) -> Any:
        """Return the predictions for metrics: probabilities where the loss takes logits."""
        if self.link == "softmax":
            return self._softmax(outputs)
        if self.link == "sigmoid":
            return self._sigmoid(outputs)
        return outputs

    def outputs_of(self, predictions: Any) -> Any:
        """Outputs for which `predictions` returns these ones."""
        if self.link == "identity":
            return predictions
        outputs = self._log(predictions)
        return outputs - self._log(1.0 - predictions) if self.link == "sigmoid" else outputs

    def results(self, sums: Sums) -> dict[str, float]:
        """Loss and metrics by name; NaN without samples.

        Raises:
            UserCodeError: if a user's metric raises.
        """
        found = {LOSS: sums.mean_loss}
        start = 0
        for name, metric in self._metrics:
            end = start + metric.num_states
            states = sums.states[start:end] if len(sums.states) else np.zeros(metric.num_states)
            with errors_of_user_code(f"{self._who}: metric {name}"):
                found[name] = metric.result(states, sums.count) if sums.count else float("nan")
            start = end
        return found

    def _loss_of_samples(self, y: Any, outputs: Any) -> Any:
        """Shape (n,); the mean over all other axes of what the loss returns."""
        values = self._tensor(self._loss(y, outputs))
        rank = len(values.shape)
        if rank == 0:
            raise InputError(
                f"{self._who}: loss: it returns one number for a batch, allowed: a number for each sample"
            )
        return self._mean(values, tuple(range(1, rank))) if rank > 1 else values

    def _check_outputs(self, outputs: tuple[int, ...]) -> None:
        """Refuse outputs of a shape that a loss of Keras does not take: it fails on them, or broadcasts.

        Args:
            outputs: shape of the outputs for one sample.
        """
        label, whole = tuple(self._label.shape), self._has_whole_labels
        if self._keras_loss is None or _without_ones(outputs) == _without_ones(label):
            return
        if KERAS_LOSSES[self._keras_loss] == "SparseCategoricalCrossentropy":
            if outputs[:-1] == label:
                return
            allowed = f"outputs of shape {(*label, self._num_classes)}"
        elif whole and outputs[:-1] == label:
            leave_out = "leave loss out, or " if self._label.is_class else ""
            raise InputError(
                f"{self._who}: loss {self._keras_loss}: labels are numbers of classes, and the model returns "
                f"{outputs[-1]} numbers for each; allowed for such labels: {leave_out}set "
                "sparse_categorical_crossentropy; other losses need labels of the shape of the outputs"
            )
        else:
            allowed = "outputs of the shape of the labels"
        raise InputError(
            f"{self._who}: loss {self._keras_loss}: labels have shape {label}, and the model returns outputs "
            f"of shape {outputs}, allowed with this loss: {allowed}"
        )

    def _check_default_loss(self, label: LabelSpec) -> None:
        if label.is_class or are_shares(label, self._num_classes):
            return
        raise InputError(
            f"{self._who}: loss: labels have shape {label.shape} and type {label.dtype}, which the default "
            "loss, the cross entropy of classes, does not take; set a loss, such as mean_squared_error for "
            "numbers, binary_crossentropy for several labels at once, or sparse_categorical_crossentropy for "
            "a class at each place"
        )

    def _named_loss(self, settings: LossConfig, ending: str | None) -> LossFunction:
        args = dict(settings.args)
        kind = KERAS_LOSSES.get(settings.name)
        if kind is None:
            if self._smoothing:
                raise self._no_smoothing(settings.name)
            self.link = "identity"
            found = self._loaded("loss", settings.name)
            with errors_of_user_code(f"{self._who}: loss {settings.name}: making it"):
                return self._own_loss(settings.name, found, args)
        self.link = _LINK_OF[self._predicts]
        if self.link != "identity" and not args.setdefault("from_logits", ending not in _SQUASHED):
            self.link = "identity"
        if kind in _OVER_A_SAMPLE:
            args.setdefault("axis", list(range(1, 1 + max(1, len(self._label.shape)))))
        if self._smoothing:
            if kind == "SparseCategoricalCrossentropy":
                raise self._no_smoothing(settings.name)
            try:
                return self._made_loss(kind, {**args, "label_smoothing": self._smoothing})
            except TypeError:
                raise self._no_smoothing(settings.name) from None
        try:
            return self._made_loss(kind, args)
        except TypeError as error:
            raise self._wrong_args("loss", settings.name, kind, error) from error

    def _loss_of_module(self) -> LossFunction:
        """Return what stands for a loss that the model computes itself; only modules of PyTorch can."""
        raise InputError(
            f"{self._who}: loss: got '{MODULE_LOSS}', which calls the method loss of a module of PyTorch, "
            "allowed for a model of Keras: a loss by name or import path; what add_loss adds counts, too"
        )

    def _no_smoothing(self, name: str) -> InputError:
        return InputError(
            f"{self._who}: label_smoothing: got {self._smoothing} with loss {name}, allowed: 0; or leave the "
            "loss out, or use categorical_crossentropy, binary_crossentropy or their focal forms"
        )

    def _wrong_args(
        self, what: Literal["loss", "metric"], name: str, kind: str, error: Exception
    ) -> InputError:
        return InputError(
            f"{self._who}: {what} {name}: {summary(error)}; arguments allowed: "
            f"{', '.join(self._arguments(what, kind)) or 'none'}"
        )

    def _loaded(self, what: str, name: str) -> Any:
        with errors_of_user_code(f"{self._who}: {what} {name}: importing it"):
            return load_object(name)

    def _named_metric(self, settings: MetricConfig) -> Metric:
        if settings.name == "accuracy" and not settings.args:
            if self.takes_classes:
                return self._accuracy_of_classes()
            if self._is_own_loss and self._has_whole_labels:
                return self._accuracy_of_whole_labels()
        if settings.args.get("from_logits"):
            raise InputError(
                f"{self._who}: metric {settings.name}: got from_logits, allowed: leave it out; metrics see "
                "probabilities where the loss takes logits"
            )
        if settings.name in KERAS_METRICS:
            kind = self._kind_of(settings.name)
            try:
                return self._made_metric(kind, settings.args)
            except (TypeError, ValueError) as error:
                raise self._wrong_args("metric", settings.name, kind, error) from error
        found = self._loaded("metric", settings.name)
        with errors_of_user_code(f"{self._who}: metric {settings.name}: making it"):
            return self._own_metric(settings.name, found, settings.args)

    def _kind_of(self, name: str) -> str:
        """The class of a metric; `accuracy` depends on the labels, as in Keras."""
        if name != "accuracy":
            return KERAS_METRICS[name][0]
        if self._predicts != "classes":
            return "BinaryAccuracy"
        return "SparseCategoricalAccuracy" if self._has_whole_labels else "CategoricalAccuracy"

    @property
    def _has_whole_labels(self) -> bool:
        return np.dtype(self._label.dtype).kind in "iu"

    def _weights_of_classes(self, given: Mapping[int, float] | str | None) -> Array | None:
        if given is None:
            return None
        if not self._label.is_class and not are_shares(self._label, self._num_classes):
            raise InputError(
                f"{self._who}: class_weights: labels have shape {self._label.shape} and type "
                f"{self._label.dtype}, allowed with class_weights: one class per sample"
            )
        assert not isinstance(given, str), given
        beyond = [number for number in given if number >= self._num_classes]
        if beyond:
            raise InputError(
                f"{self._who}: class_weights: got class {beyond[0]}, allowed: 0 to {self._num_classes - 1}"
            )
        weights = np.ones(self._num_classes)
        for number, weight in given.items():
            weights[number] = weight
        return weights


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without an axis of length 1 at its end: Keras treats labels of (n, 1) and (n,) alike."""
    return shape[:-1] if shape[-1:] == (1,) else shape


class errors_of_user_code:  # noqa: N801  (a context manager, used like a function)
    """Turns what a user's loss or metric raises into a `UserCodeError`."""

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is None or isinstance(error, HpcbalError | MemoryError):
            return
        if isinstance(error, USER_ERRORS):
            raise UserCodeError(f"{self._doing} failed: {summary(error)}") from error


__all__ = ["MAX_STATES", "Link", "Objective", "Probe", "errors_of_user_code"]

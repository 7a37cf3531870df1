"""The losses and the metrics of a model with one output, or with several that have names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hpcbal.config.schema.dnn import DnnConfig
from hpcbal.config.source.meant import did_you_mean
from hpcbal.data.spec import UNNAMED, LabelSpec
from hpcbal.errors import InputError
from hpcbal.events.history import LOSS
from hpcbal.training.backend import Sums
from hpcbal.training.objective import MAX_STATES, Link, Objective, Probe

ByOutput = Mapping[str, Any]
"""Tensors by the names of outputs; that of one output without a name is under `UNNAMED`."""


def by_name(outputs: Any) -> ByOutput:
    """Return outputs that are a tensor, or tensors by name, as a mapping."""
    return outputs if isinstance(outputs, Mapping) else {UNNAMED: outputs}


class Outputs:
    """The objectives of a model's outputs, and how their losses are added up.

    What training minimises is the sum of the outputs' losses, each times its weight. Where there are several,
    the losses of each output are summed beside the metrics, without the weight, as in Keras.

    Attributes:
        by_name: objective of each output.
        num_states: number of sums behind losses of outputs and metrics; known after `try_on`.

    Args:
        dnn: its losses, their weights, and metrics.
        label: shape and type of the labels, which have the names of the outputs.
        num_classes: number of classes, if a label without a name is a class.
        make: makes the objective of one output.
        endings: activation at the end of each output, as far as it is known.

    Raises:
        InputError: if losses or metrics do not fit the labels.
        UserCodeError: if a user's callable raises.
    """

    def __init__(
        self,
        dnn: DnnConfig,
        label: LabelSpec,
        num_classes: int,
        make: Callable[[DnnConfig, LabelSpec, int, str | None], Objective],
        endings: Mapping[str, str | None],
    ) -> None:
        self._who = f"DNN {dnn.name}"
        labels = label.by_name
        check_names(dnn, label)
        self.by_name: Mapping[str, Objective] = {
            name: make(
                dnn.of_output(name) if name else dnn, spec, spec.num_classes or num_classes, endings.get(name)
            )
            for name, spec in labels.items()
        }
        weights = dnn.loss_weights or {}
        self._weights = {name: float(weights.get(name, 1.0)) for name in labels}
        self._is_summed_by_output = len(labels) > 1 and not dnn.has_own_loss
        self.num_states = 0

    @property
    def links(self) -> Mapping[str, Link]:
        """The link of each output."""
        return {name: objective.link for name, objective in self.by_name.items()}

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the metrics in results, in order."""
        return tuple(
            self._prefixed(name, metric)
            for name, objective in self.by_name.items()
            for metric in objective.metric_names
        )

    def _prefixed(self, output: str, name: str) -> str:
        return f"{output}_{name}" if len(self.by_name) > 1 else name

    def try_on(self, labels: Any, outputs: Any) -> None:
        """Try losses and metrics on a few samples; see `Objective.try_on`.

        Args:
            labels, outputs: tensors, or tensors by name.
        """
        labels, outputs = by_name(labels), by_name(outputs)
        for name, objective in self.by_name.items():
            objective.try_on(Probe(labels[name], outputs[name]))
        own = len(self.by_name) if self._is_summed_by_output else 0
        self.num_states = own + sum(objective.num_states for objective in self.by_name.values())
        if self.num_states > MAX_STATES:
            raise InputError(
                f"{self._who}: metrics: their states are {self.num_states} numbers, allowed: at most "
                f"{MAX_STATES}, because they travel with every step"
            )

    def losses(
        self, labels: ByOutput, sample_weights: Any = None, *, outputs: Any, training: bool
    ) -> ByOutput:
        """The losses of samples by output, each of shape (n,); traced. See `Objective.losses`."""
        given = by_name(outputs)
        return {
            name: objective.losses(labels[name], sample_weights, outputs=given[name], training=training)
            for name, objective in self.by_name.items()
        }

    def weighted(self, losses: Any, labels: ByOutput, sample_weights: Any, *, training: bool) -> ByOutput:
        """Losses that a model has computed of all of its outputs, times weights of samples; traced."""
        name, objective = next(iter(self.by_name.items()))
        return {UNNAMED: objective.weighted(losses, labels[name], sample_weights, training=training)}

    def total(self, losses: ByOutput) -> Any:
        """The sum of the outputs' losses times their weights, shape (n,); traced."""
        terms = [
            each if self._weights.get(name, 1.0) == 1.0 else each * self._weights[name]
            for name, each in losses.items()
        ]
        found = terms[0]
        for term in terms[1:]:
            found = found + term
        return found

    def states(self, labels: ByOutput, outputs: Any, losses: ByOutput) -> list[Any]:
        """The sums behind losses of outputs and metrics, as tensors of any shape; traced.

        Args:
            losses: what `losses` has returned.
        """
        given = by_name(outputs)
        found: list[Any] = []
        if self._is_summed_by_output:
            found += [self.by_name[name].sum_of(each) for name, each in losses.items()]
        for name, objective in self.by_name.items():
            found += objective.states(labels[name], given[name])
        return found

    def predictions(self, outputs: Any) -> Any:
        """Return the predictions of outputs: a tensor, or tensors by name. See `Objective.predictions`."""
        return self._each(outputs, Objective.predictions)

    def outputs_of(self, predictions: Any) -> Any:
        """Outputs for which `predictions` returns these ones."""
        return self._each(predictions, Objective.outputs_of)

    def _each(self, given: Any, of: Callable[[Objective, Any], Any]) -> Any:
        if not isinstance(given, Mapping):
            (objective,) = self.by_name.values()
            return of(objective, given)
        return {name: of(objective, given[name]) for name, objective in self.by_name.items()}

    def results(self, sums: Sums) -> dict[str, float]:
        """Loss and metrics by name; NaN without samples. The losses of outputs come last.

        Raises:
            UserCodeError: if a user's metric raises.
        """
        found, of_outputs = {LOSS: sums.mean_loss}, dict[str, float]()
        states = sums.states if len(sums.states) else np.zeros(self.num_states)
        if self._is_summed_by_output:
            for name, value in zip(self.by_name, states, strict=False):
                mean = float(value) / sums.count if sums.count else float("nan")
                of_outputs[f"{name}_{LOSS}"] = mean
            states = states[len(self.by_name) :]
        for name, objective in self.by_name.items():
            own, states = states[: objective.num_states], states[objective.num_states :]
            results = objective.results(Sums(0.0, sums.count, own))
            found |= {self._prefixed(name, key): results[key] for key in objective.metric_names}
        return found | of_outputs


def check_names(dnn: DnnConfig, label: LabelSpec) -> None:
    """Check that the names of outputs in a DNN's configuration are those of the labels.

    Raises:
        InputError: if not.
    """
    who, names = f"DNN {dnn.name}", list(dict(label.parts))
    by_output = {
        "loss": dnn.loss,
        "metrics": dnn.metrics,
        "loss_weights": dnn.loss_weights,
        "label_smoothing": dnn.label_smoothing,
    }
    for key, given in by_output.items():
        for name in given if isinstance(given, Mapping) else ():
            if name not in names:
                allowed = f"outputs with a label: {', '.join(names)}" if names else "no names of outputs"
                why = "" if names else ", because the labels of the data have none"
                raise InputError(
                    f"{who}: {key}: got the output {name!r}{did_you_mean(name, names)}, allowed: "
                    f"{allowed}{why}"
                )
    if len(names) < 2:
        return
    smoothing = None if isinstance(dnn.label_smoothing, Mapping) else dnn.label_smoothing
    for key, value in {"label_smoothing": smoothing, "class_weights": dnn.class_weights}.items():
        if value:
            raise InputError(f"{who}: {key}: got {value!r}, allowed with several labels: leave it out")
    if dnn.has_own_loss:
        return
    without = [name for name in names if name not in dnn.outputs]
    if without:
        raise InputError(
            f"{who}: loss: there is none for the output {without[0]}, allowed with several labels "
            f"({', '.join(names)}): a mapping with a loss for each, null for the cross entropy of classes"
        )


def named_outputs(who: str, returned: Any, names: Sequence[str], known: Sequence[str] = ()) -> Any:
    """Return what a model returns by the names of its outputs.

    Args:
        who: the DNN and its model, for messages.
        returned: a tensor; or several in a mapping, a named tuple, a list or a tuple.
        names: of the labels; none: it is returned as it is.
        known: names that the model itself gives the outputs in a list, in order.

    Returns: a dict in the order of `names`; without names, what is given.

    Raises:
        InputError: if the names or their number differ.
    """
    if not names:
        return returned
    if isinstance(returned, tuple) and hasattr(returned, "_asdict"):
        returned = returned._asdict()
    elif isinstance(returned, list | tuple):
        known = known if len(names) > 1 else ()
        if len(returned) != len(names):
            raise InputError(
                f"{who} returns {len(returned)} outputs, allowed: {len(names)}, one for each label: "
                f"{', '.join(names)}"
            )
        returned = dict(zip(known or names, returned, strict=True))
    elif not isinstance(returned, Mapping):
        if len(names) > 1:
            raise InputError(
                f"{who} returns a {type(returned).__name__}, allowed: a dict with an output for each label: "
                f"{', '.join(names)}"
            )
        return {names[0]: returned}
    if returned.keys() != {*names}:
        wrong = [name for name in returned if name not in names]
        hint = did_you_mean(str(wrong[0]), names) if wrong else ""
        raise InputError(
            f"{who} returns the outputs {', '.join(map(str, returned))}{hint}, allowed: one for each label: "
            f"{', '.join(names)}"
        )
    return {name: returned[name] for name in names}


def model_arguments(sample_shapes: Mapping[str, Any], label: LabelSpec, num_classes: int) -> tuple[Any, Any]:
    """Return the first two arguments of a model's callable: shapes and numbers of classes, by name if named.

    Args:
        sample_shapes: of each array of a sample, as the model gets it; one without a name is under `UNNAMED`.
        label: shape and type of the labels.
        num_classes: number of classes of a label without a name.
    """
    shapes = {name: tuple(shape) for name, shape in sample_shapes.items()}
    classes = {name: spec.num_classes for name, spec in label.parts}
    return shapes.get(UNNAMED, shapes), classes or num_classes

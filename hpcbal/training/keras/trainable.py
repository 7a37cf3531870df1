"""The parts of a Keras model that a replica needs: optimizer, variables, frozen layers, averages of weights.

The variables of a frozen layer have no gradient and no optimizer state, and the ranks send nothing for them.
A frozen batch normalisation normalises with its moving statistics, as Keras does, so these stay as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from hpcbal.config.schema.optimizer import OptimizerConfig
from hpcbal.errors import InputError
from hpcbal.training.devices import SEED_STATE
from hpcbal.training.user_model import check_optimizer_args
from hpcbal.training.weights import TRAINED, WEIGHTS, ModelLayer, is_meant, unknown_layer


def make_optimizer(dnn_name: str, settings: OptimizerConfig) -> keras.optimizers.Optimizer:
    """Make an optimizer by its Keras name, in any case.

    Raises:
        InputError: if there is no such optimizer, or it does not have a given setting.
    """
    by_name = {
        name.lower(): kind
        for name, kind in vars(keras.optimizers).items()
        if isinstance(kind, type) and issubclass(kind, keras.optimizers.Optimizer) and name != "Optimizer"
    }
    by_name.pop("lossscaleoptimizer", None)
    kind = by_name.get(settings.name.lower())
    if kind is None:
        raise InputError(
            f"DNN {dnn_name}: optimizer.name: got {settings.name!r}, allowed: {', '.join(sorted(by_name))}"
        )
    check_optimizer_args(dnn_name, settings, kind)
    arguments: dict[str, Any] = {"learning_rate": settings.learning_rate, **settings.args}
    for key in ("momentum", "nesterov", "weight_decay"):
        if getattr(settings, key):
            arguments[key] = getattr(settings, key)
    if settings.clip_norm is not None:
        arguments["global_clipnorm"] = settings.clip_norm
    try:
        optimizer = kind(**arguments)
        if settings.no_weight_decay:
            optimizer.exclude_from_weight_decay(
                var_names=[re.escape(name) for name in settings.no_weight_decay]
            )
        return optimizer
    except (TypeError, ValueError) as error:
        raise InputError(f"DNN {dnn_name}: optimizer {settings.name}: {error}") from error


def named_variables(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> dict[str, keras.Variable]:
    """All variables except the learning rate (set by the config), by unique path-like names."""
    named: dict[str, keras.Variable] = {}
    for variable in model.variables:
        _add(named, f"weights/{variable.path}", variable)
    for variable in optimizer.variables:
        if variable is not optimizer._learning_rate:
            _add(named, f"optimizer/{variable.path.split('/', 1)[-1]}", variable)
    return named


def _add(named: dict[str, keras.Variable], name: str, variable: keras.Variable) -> None:
    unique, copies = name, 1
    while unique in named:
        unique, copies = f"{name}_{copies}", copies + 1
    named[unique] = variable


def moving_variances(
    model: keras.Model, statistics: Sequence[keras.Variable]
) -> dict[int, tuple[int, float]]:
    """For each layer with batch norm, by its moving variance: its moving mean, and the rate of both.

    A step moves both by `rate` times the difference to its batch. A layer with rate 0 is left out, as is a
    frozen one, whose variables are not among the statistics.
    """
    place = {id(variable): index for index, variable in enumerate(statistics)}
    return {
        place[id(layer.moving_variance)]: (place[id(layer.moving_mean)], 1.0 - layer.momentum)
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization)
        and id(layer.moving_variance) in place
        and layer.momentum < 1.0
        and not getattr(layer, "renorm", False)
    }


Numbered = list[tuple[int, keras.Variable]]


class Changing(NamedTuple):
    """Variables that no gradient changes, but a step; by their index in `non_trainable_variables`.

    Attributes:
        statistics: moving statistics and other floating-point numbers.
        seeds: the state of random layers.
        warnings: a sentence on variables that hpcbal does not update, if there are any.
    """

    statistics: Numbered
    seeds: Numbered
    warnings: list[str]


def changing_variables(model: keras.Model) -> Changing:
    """Find what a step changes besides the trainable variables."""
    frozen = _frozen_variables(model)
    own = [(i, v) for i, v in enumerate(model.non_trainable_variables) if id(v) not in frozen]
    seeds = [(i, v) for i, v in own if v.path.endswith(SEED_STATE)]
    statistics = [(i, v) for i, v in own if tf.as_dtype(v.dtype).is_floating]
    known = {i for i, _ in (*seeds, *statistics)}
    left = ", ".join(v.path for i, v in own if i not in known)
    text = f"not updated in training, because they are not floating-point numbers: {left}"
    return Changing(statistics, seeds, [text] if left else [])


def _frozen_variables(model: keras.Model) -> set[int]:
    """The ids of the variables that frozen layers keep."""
    found: set[int] = set()
    for layer in model._flatten_layers():
        if not layer.trainable:
            found |= {id(v) for v in layer._trainable_variables}
            if isinstance(layer, keras.layers.BatchNormalization):
                found |= {id(v) for v in layer._non_trainable_variables}
    return found


def freeze_layers(dnn_name: str, model: keras.Model, patterns: Sequence[str]) -> None:
    """Freeze the layers that the patterns name, with all that they hold.

    Args:
        model: the user's, built.

    Raises:
        InputError: if a pattern names no layer with weights, or nothing is left to train.
    """
    layers = [(path, layer) for path, layer in _layers_below(model) if layer.weights]
    for pattern in patterns:
        problem = unknown_layer(pattern, [path for path, _ in layers])
        if problem is not None:
            raise InputError(f"DNN {dnn_name}: freeze: {problem}")
    for path, layer in layers:
        if any(is_meant(path, pattern) for pattern in patterns):
            layer.trainable = False
    if patterns and not model.trainable_variables:
        raise InputError(
            f"DNN {dnn_name}: freeze: {list(patterns)} freezes all layers, allowed: patterns that leave one"
        )


def layers_of(model: keras.Model, named: Mapping[str, keras.Variable]) -> list[ModelLayer]:
    """The layers that hold variables themselves.

    Args:
        model: the user's, built.
        named: its variables by their names in `Replica.state`.
    """
    names = {id(variable): name for name, variable in named.items()}
    found = []
    for path, layer in (("", model), *_layers_below(model)):
        own = tuple(names[id(v)] for v in layer._trainable_variables + layer._non_trainable_variables)
        if own:
            found.append(ModelLayer(path, own))
    return found


def _layers_below(model: keras.layers.Layer) -> Iterator[tuple[str, keras.layers.Layer]]:
    """Each layer once, at the first path where it is; a layer comes before those that it holds."""
    seen: set[int] = set()

    def walk(layer: keras.layers.Layer, prefix: str) -> Iterator[tuple[str, keras.layers.Layer]]:
        for child in layer._layers:
            if id(child) not in seen:
                seen.add(id(child))
                yield prefix + child.name, child
                yield from walk(child, f"{prefix}{child.name}/")

    yield from walk(model, "")


class Averages:
    """Averages of trainable variables: after the first update the weights, then decay*a + (1-decay)*w.

    Before it they are the initial weights. Moving statistics have none.

    Attributes:
        evaluated: the averages, in the order of `trainable`; without a decay these themselves.

    Args:
        trainable: variables that have their initial values.
        decay: 0 < decay < 1; None: there are no averages, and all below changes nothing.

    Source: as `use_ema` of Keras' optimizers.
    """

    def __init__(self, trainable: Sequence[keras.Variable], decay: float | None) -> None:
        self._trainable = list(trainable)
        self._decay = decay
        self.evaluated = self._trainable
        if decay is not None:
            self.evaluated = [keras.Variable(v.numpy(), dtype=v.dtype, trainable=False) for v in trainable]

    def update(self, num_updates: tf.Tensor) -> None:
        """Take the weights of this moment in; traced.

        Args:
            num_updates: updates so far, including this one.
        """
        if self._decay is None:
            return
        for average, variable in zip(self.evaluated, self._trainable, strict=True):
            decay = tf.constant(self._decay, variable.value.dtype)
            decay = tf.where(tf.equal(num_updates, 1), tf.zeros_like(decay), decay)
            average.value.assign(decay * average.value + (1.0 - decay) * variable.value)

    def named(self, variables: Mapping[str, keras.Variable]) -> dict[str, keras.Variable]:
        """Return all variables by their names in a state: averages are its weights.

        Args:
            variables: those of model and optimizer by their names without averages.
        """
        found = dict(variables)
        if self._decay is None:
            return found
        average_of = {id(v): average for v, average in zip(self._trainable, self.evaluated, strict=True)}
        for name, variable in variables.items():
            if id(variable) in average_of:
                found[name] = average_of[id(variable)]
                found[f"{TRAINED}{name.removeprefix(WEIGHTS)}"] = variable
        return found

"""What a replica needs from a Keras model: optimizer, variables by name, moving variances."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import keras

from hpcbal.errors import InputError
from hpcbal.training.backend import OptimizerSettings


def make_optimizer(dnn_name: str, settings: OptimizerSettings) -> keras.optimizers.Optimizer:
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
    arguments: dict[str, Any] = {"learning_rate": settings.learning_rate}
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

    A step moves both by `rate` times the difference to its batch. A layer with rate 0 is left out.
    """
    place = {id(variable): index for index, variable in enumerate(statistics)}
    return {
        place[id(layer.moving_variance)]: (place[id(layer.moving_mean)], 1.0 - layer.momentum)
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization)
        and layer.momentum < 1.0
        and not getattr(layer, "renorm", False)
    }

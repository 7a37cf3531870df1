"""Start a Keras model from saved weights, and freeze layers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

import keras
import numpy as np

from hpcbal.checkpoint import read_weights
from hpcbal.errors import HpcbalError, InputError
from hpcbal.training.arrays import Array
from hpcbal.training.backend import DnnSettings, InitSettings
from hpcbal.user_code import summary

T = TypeVar("T")

_WEIGHTS = "weights/"
_MAX_NAMED = 6


def freeze(dnn: DnnSettings, model: keras.Model) -> None:
    """Make the layers of `dnn.freeze` not trainable: batch normalisation then runs as in inference.

    Args:
        model: what the user's callable returned; need not be built.

    Raises:
        InputError: if a pattern matches no layer.
    """
    if not dnn.freeze or not isinstance(model, keras.Model):
        return
    layers = list(model._flatten_layers(include_self=False))
    for pattern in dnn.freeze:
        found = [layer for layer in layers if fnmatchcase(layer.name, pattern)]
        if not found:
            raise InputError(
                f"DNN {dnn.name}: freeze: {pattern!r} matches no layer, allowed: "
                f"{_some([layer.name for layer in layers])}"
            )
        for layer in found:
            layer.trainable = False


def start_from(dnn: DnnSettings, model: keras.Model) -> None:
    """Load the weights that `dnn.init` names into a built model; does nothing without it.

    Raises:
        InputError: if they are missing, cannot be read, or do not fit; the message names what does not.
    """
    init = dnn.init
    if init is None:
        return
    who = f"DNN {dnn.name}: init"
    if init.file is not None and not os.path.isfile(init.file):
        raise InputError(f"{who}: {init.file}: no such file")
    if init.file is not None and not init.file.endswith(".keras"):
        try:
            model.load_weights(init.file)
        except Exception as error:  # Keras raises many kinds for a file that does not fit
            raise InputError(f"{who}: {init.file} does not fit the model: {summary(error)}") from error
        return
    arrays, source = _arrays(dnn.name, who, init)
    variables = _without_model({v.path: v for v in model.variables})
    wanted = {path: v for path, v in variables.items() if init.layers is None or _is_of(path, init.layers)}
    for pattern in init.layers or ():
        if not any(_is_of(path, (pattern,)) for path in wanted):
            names = dict.fromkeys(part for path in variables for part in path.split("/")[:-1])
            raise InputError(
                f"{who}: layers: {pattern!r} matches no layer with weights, allowed: {_some(list(names))}"
            )
    missing = [path for path in wanted if path not in arrays]
    if missing:
        raise InputError(
            f"{who}: {source} has no {_some(missing)}; it has {_some(list(arrays))}. Give both models' "
            "layers the same names, or choose layers"
        )
    for path, variable in wanted.items():
        if arrays[path].shape != tuple(variable.shape):
            raise InputError(
                f"{who}: {path} has shape {arrays[path].shape} in {source}, and {tuple(variable.shape)} in "
                "the model; choose the layers that fit"
            )
    for path, variable in wanted.items():
        variable.assign(arrays[path])


def _arrays(dnn_name: str, who: str, init: InitSettings) -> tuple[Mapping[str, Array], str]:
    """The saved weights by path, and where they are from."""
    if init.file is not None:
        try:
            saved = keras.models.load_model(init.file, compile=False)
        except Exception as error:  # as above
            raise InputError(f"{who}: {init.file} cannot be read: {summary(error)}") from error
        return _without_model({v.path: np.asarray(v.value) for v in saved.variables}), init.file
    assert init.run is not None
    directory = Path(init.run) / "dnns" / (init.dnn or dnn_name)
    if not directory.is_dir():
        names = sorted(path.name for path in (Path(init.run) / "dnns").glob("*") if path.is_dir())
        allowed = _some(names) or "the output directory of a run"
        raise InputError(f"{who}: {init.run} has no DNN {init.dnn or dnn_name!r}, allowed: {allowed}")
    try:
        kept, _ = read_weights(directory, init.weights)
    except HpcbalError as error:
        raise InputError(f"{who}: {error}") from error
    arrays = {name.removeprefix(_WEIGHTS): array for name, array in kept.arrays.items()}
    return _without_model(arrays), f"{directory} ({kept.in_words()})"


def _without_model(by_path: Mapping[str, T]) -> dict[str, T]:
    """Paths without the name of the whole model, which Keras puts first in some models, and not in files."""
    parts = [path.split("/") for path in by_path]
    is_named = len({each[0] for each in parts}) == 1 and all(len(each) > 2 for each in parts)
    return {path.partition("/")[2] if is_named else path: value for path, value in by_path.items()}


def _is_of(path: str, patterns: Sequence[str]) -> bool:
    """Whether a weight belongs to a layer that matches, at any depth."""
    return any(fnmatchcase(part, pattern) for part in path.split("/")[:-1] for pattern in patterns)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMED])
    return shown if len(names) <= _MAX_NAMED else f"{shown} and {len(names) - _MAX_NAMED} more"

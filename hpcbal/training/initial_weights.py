"""Find the weights that a model starts from in a file or a checkpoint, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcbal.errors import InputError
from hpcbal.training.devices import SEED_STATE
from hpcbal.training.layers import (
    ModelLayer,
    is_meant,
    layer_and_variable,
    layers_by_name,
    separator_of,
    shown,
    unknown_layer,
)
from hpcbal.training.weights import Array, Arrays, summary_of


@dataclass(frozen=True, slots=True)
class SourceLayer:
    """A layer of a file.

    Attributes:
        path: as in `ModelLayer`.
        arrays: its arrays, in the order of the layer.
        names: names of its arrays in a checkpoint; empty for a file without such names.
    """

    path: str
    arrays: tuple[Array, ...]
    names: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.path.rpartition(separator_of(self.path))[2]


def without_prefix(path: Path, arrays: Mapping[str, Array], prefix: str) -> Arrays:
    """Return the arrays whose names begin with a prefix, under their names without it.

    Args:
        path: where they come from, for the message.

    Raises:
        InputError: if none does.
    """
    chosen = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
    if arrays and not chosen:
        some = ", ".join(list(arrays)[:3])
        raise InputError(f"{path}: no name begins with {prefix!r}; names are {some}, ...")
    return chosen


def layers_of_checkpoint(arrays: Mapping[str, Array]) -> list[SourceLayer]:
    """The layers behind the weights of a checkpoint."""
    return [
        SourceLayer(layer.path, tuple(arrays[name] for name in layer.weights), layer.weights)
        for layer in layers_by_name(arrays)
    ]


@dataclass(frozen=True, slots=True)
class InitialWeights:
    """Arrays that replace those of a new replica, and the layers that they belong to."""

    arrays: Arrays
    layers: tuple[str, ...]


def initial_weights(
    layers: Sequence[ModelLayer],
    own: Mapping[str, Array],
    source: Sequence[SourceLayer],
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
) -> InitialWeights:
    """Choose layers of a model, and find the weights of each in a source.

    A layer is found by the names of its arrays, by its path, or by its name if only one layer of the source
    has it. The state of random layers stays as it is.

    Args:
        layers: of the model.
        own: the arrays of the model, for shapes and types.
        only: patterns of the layers that are wanted; empty: all.
        skip: patterns of layers that are not.

    Raises:
        InputError: if a pattern names no layer, a layer is not found, or its shapes differ; the message has
            no beginning that says which DNN and which source.
    """
    layers = [layer for layer in map(_without_random_state, layers) if layer.weights]
    paths = [layer.path for layer in layers]
    for key, patterns in (("layers", only), ("skip", skip)):
        for pattern in patterns:
            problem = unknown_layer(pattern, paths)
            if problem is not None:
                raise InputError(f"init.{key}: {problem}")
    wanted = [
        layer for layer in layers if (not only or _is_one_of(layer, only)) and not _is_one_of(layer, skip)
    ]
    if not wanted:
        raise InputError("init.skip: leaves no layer, allowed: patterns that leave one, or no init")
    found: Arrays = {}
    problems, missing = [], []
    by_names = {name: array for each in source for name, array in zip(each.names, each.arrays, strict=False)}
    for layer in wanted:
        arrays = _found(layer, source, by_names)
        if isinstance(arrays, str):
            problems.append(arrays)
        elif arrays is None:
            missing.append(layer.path)
        elif misfits := _misfits(layer, own, arrays):
            problems += misfits
        else:
            found |= {
                name: np.asarray(array, own[name].dtype)
                for name, array in zip(layer.weights, arrays, strict=True)
            }
    if missing:
        held = shown([each.path for each in source if each.arrays])
        problems.insert(0, f"it has no layer {shown(missing)}; it has {held}")
    if problems:
        raise InputError(
            f"{summary_of(problems)}; name the layers that fit in init.layers, or the others in init.skip"
        )
    return InitialWeights(found, tuple(layer.path for layer in wanted))


def _without_random_state(layer: ModelLayer) -> ModelLayer:
    return ModelLayer(layer.path, tuple(name for name in layer.weights if not name.endswith(SEED_STATE)))


def _is_one_of(layer: ModelLayer, patterns: Sequence[str]) -> bool:
    return any(is_meant(layer.path, pattern) for pattern in patterns)


def _found(
    layer: ModelLayer, source: Sequence[SourceLayer], by_names: Mapping[str, Array]
) -> tuple[Array, ...] | str | None:
    """The arrays of a layer; None if there is none of its name, a sentence if there are several."""
    if all(name in by_names for name in layer.weights):
        return tuple(by_names[name] for name in layer.weights)
    held = [each for each in source if each.arrays]
    same = [each for each in held if each.path == layer.path]
    same = same or [each for each in held if each.name == layer.path.rpartition(separator_of(layer.path))[2]]
    if len(same) > 1:
        return f"layer {layer.path}: it may be any of {shown([each.path for each in same])}"
    return _in_order(layer, same[0]) if same else None


def _in_order(layer: ModelLayer, found: SourceLayer) -> tuple[Array, ...]:
    """Arrays of a layer in the order of the model's, by their names if both have the same."""
    held = {layer_and_variable(name)[1]: i for i, name in enumerate(found.names)}
    wanted = [layer_and_variable(name)[1] for name in layer.weights]
    return tuple(found.arrays[held[name]] for name in wanted) if held.keys() == set(wanted) else found.arrays


def _misfits(layer: ModelLayer, own: Mapping[str, Array], arrays: tuple[Array, ...]) -> list[str]:
    """Return the differences between a layer and the arrays that were found for it."""
    if len(arrays) != len(layer.weights):
        return [f"layer {layer.path} has {len(layer.weights)} arrays, there it has {len(arrays)}"]
    problems = []
    for name, array in zip(layer.weights, arrays, strict=True):
        variable = layer_and_variable(name)[1]
        if array.shape != own[name].shape:
            problems.append(f"layer {layer.path}: {variable} is {own[name].shape}, there it is {array.shape}")
        elif not np.can_cast(array.dtype, own[name].dtype, "same_kind"):
            problems.append(f"layer {layer.path}: {variable} is {own[name].dtype}, there {array.dtype}")
    return problems

"""Weights of a model: their layers by path, and what differs between a model and its checkpoint."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcbal.config.source.meant import did_you_mean
from hpcbal.errors import CheckpointError

WEIGHTS = "weights/"
"""Prefix of the arrays of a replica that are weights."""
_MAX_SHOWN = 12


@dataclass(frozen=True, slots=True)
class ModelLayer:
    """A layer with weights.

    Attributes:
        path: names of the models that it is in, without the outermost one, and its own: `backbone/conv1` of
            Keras, `backbone.conv1` of PyTorch.
        weights: names of its arrays in `Replica.state`, in the order of the layer.
    """

    path: str
    weights: tuple[str, ...]


def layers_by_name(names: Iterable[str]) -> list[ModelLayer]:
    """Layers as the names of arrays show them: `weights/dense/kernel` belongs to `dense`."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(layer_and_variable(name)[0], []).append(name)
    return [ModelLayer(path, tuple(weights)) for path, weights in found.items()]


def layer_and_variable(name: str) -> tuple[str, str]:
    """The path of the layer of an array, and the array's name there; a lone array is a layer of its name.

    Args:
        name: with or without `WEIGHTS`: `backbone/dense/kernel` as Keras names it, or `backbone.dense.weight`
            as in a `state_dict` of PyTorch.
    """
    path, _, variable = name.removeprefix(WEIGHTS).rpartition(separator_of(name.removeprefix(WEIGHTS)))
    return path or variable, variable


def separator_of(path: str) -> str:
    """The character between the names in a path: `/` of Keras, else `.` of PyTorch."""
    return "/" if "/" in path else "."


def is_meant(path: str, pattern: str) -> bool:
    """Whether a pattern names this layer, or a model that it is in, by name or by path."""
    separator = separator_of(path)
    parts = path.split(separator)
    ends = range(1, len(parts) + 1)
    return any(fnmatchcase(separator.join(parts[i:j]), pattern) for j in ends for i in range(j))


def unknown_layer(pattern: str, paths: Sequence[str]) -> str | None:
    """Return the error in a pattern that names no layer; None if it names one.

    Args:
        paths: of all layers with weights.
    """
    if any(is_meant(path, pattern) for path in paths):
        return None
    names = list(dict.fromkeys(name for path in paths for name in path.split(separator_of(path))))
    return f"got {pattern!r}{did_you_mean(pattern, names)}, allowed: a layer of the model: {shown(paths)}"


def shown(paths: Sequence[str]) -> str:
    """The first paths, and how many more there are."""
    more = f" and {len(paths) - _MAX_SHOWN} more" if len(paths) > _MAX_SHOWN else ""
    return ", ".join(paths[:_MAX_SHOWN]) + more


Array = npt.NDArray[Any]
Arrays = dict[str, Array]

TRAINED = "optimizer/trained/"
"""Prefix of the weights that training goes on from, in the state of a replica whose weights are averages."""


def checksum(arrays: Mapping[str, Array]) -> int:
    """CRC-32 over names, shapes, types and bytes; equal for equal arrays, in any order of names."""
    crc = 0
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        crc = zlib.crc32(f"{name} {array.shape} {array.dtype.str}".encode(), crc)
        crc = zlib.crc32(array.reshape(-1).view(np.uint8).data, crc)
    return crc


def num_bytes(arrays: Mapping[str, Array]) -> int:
    """Bytes of all arrays together."""
    return sum(array.nbytes for array in arrays.values())


def with_weights(state: Mapping[str, Array], weights: Mapping[str, Array]) -> Arrays:
    """Return the state of a replica with other weights, from which training goes on, too.

    Args:
        state: of the replica.
        weights: some of its weights, by their names in its state.
    """
    trained = {f"{TRAINED}{name.removeprefix(WEIGHTS)}": array for name, array in weights.items()}
    return {**state, **weights, **{name: array for name, array in trained.items() if name in state}}


MAX_SHOWN = 5

_OPTIMIZER = "optimizer/"


def model_changes(saved: Mapping[str, Array], own: Mapping[str, Array]) -> list[str]:
    """Return the differences, in the order of the model; empty if every array fits.

    Differences of the optimizer's variables follow from those of the weights, so they are shown only if the
    weights fit.

    Args:
        saved: arrays of a checkpoint by path-like names: "weights/<layer>/<variable>", "optimizer/...".
        own: the model's own arrays, for names, shapes and types.
    """
    if saved.keys() == own.keys() and all(
        saved[name].shape == array.shape and saved[name].dtype == array.dtype for name, array in own.items()
    ):
        return []
    weights = _changes_by_layer(
        {name: array for name, array in saved.items() if not name.startswith(_OPTIMIZER)},
        {name: array for name, array in own.items() if not name.startswith(_OPTIMIZER)},
    )
    return weights or _optimizer_changes(saved, own)


def check_fit(saved: Mapping[str, Array], own: Mapping[str, Array]) -> None:
    """Refuse arrays that differ from those of the model in name, shape or type.

    Raises:
        CheckpointError: says what differs; for the arguments see `model_changes`.
    """
    changes = model_changes(saved, own)
    if changes:
        raise CheckpointError(summary_of(changes))


def summary_of(changes: list[str]) -> str:
    """One line: the first changes, and how many more there are."""
    more = f"; and {len(changes) - MAX_SHOWN} more" if len(changes) > MAX_SHOWN else ""
    return "; ".join(changes[:MAX_SHOWN]) + more


def _changes_by_layer(saved: Mapping[str, Array], own: Mapping[str, Array]) -> list[str]:
    before_by_layer, now_by_layer = _by_layer(saved), _by_layer(own)
    found = []
    for layer in dict.fromkeys([*now_by_layer, *before_by_layer]):
        before, now = before_by_layer.get(layer, {}), now_by_layer.get(layer, {})
        if not before:
            found.append(f"layer {layer} is new ({_shapes(now)})")
        elif not now:
            found.append(f"layer {layer} is gone ({_shapes(before)})")
        else:
            changed = _changed_variables(before, now)
            if changed:
                found.append(f"layer {layer}: {', '.join(changed)}")
    return found


def _changed_variables(before: Mapping[str, Array], now: Mapping[str, Array]) -> list[str]:
    changed = []
    for name in dict.fromkeys([*now, *before]):
        if name not in before:
            changed.append(f"{name} {now[name].shape} is new")
        elif name not in now:
            changed.append(f"{name} {before[name].shape} is gone")
        elif before[name].shape != now[name].shape:
            changed.append(f"{name} is {now[name].shape}, was {before[name].shape}")
        elif before[name].dtype != now[name].dtype:
            changed.append(f"{name} is {now[name].dtype}, was {before[name].dtype}")
    return changed


def _optimizer_changes(saved: Mapping[str, Array], own: Mapping[str, Array]) -> list[str]:
    before = {name.removeprefix(_OPTIMIZER): a for name, a in saved.items() if name.startswith(_OPTIMIZER)}
    now = {name.removeprefix(_OPTIMIZER): a for name, a in own.items() if name.startswith(_OPTIMIZER)}
    changed = _changed_variables(before, now)
    return [f"the optimizer: {summary_of(changed)}"] if changed else []


def _by_layer(arrays: Mapping[str, Array]) -> dict[str, dict[str, Array]]:
    """Arrays by layer and variable: `weights/sequential/dense/kernel` is `kernel` of `sequential/dense`."""
    found: dict[str, dict[str, Array]] = {}
    for name, array in arrays.items():
        layer, variable = layer_and_variable(name)
        found.setdefault(layer, {})[variable] = array
    return found


def _shapes(arrays: Mapping[str, Array]) -> str:
    return ", ".join(f"{name} {array.shape}" for name, array in arrays.items())

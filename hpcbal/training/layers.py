"""The layers of a model by path, and patterns that name some of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from hpcbal.config.source.meant import did_you_mean

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

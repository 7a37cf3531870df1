"""Values of a YAML file with their lines, and how values are shown in messages."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from hpcbal.errors import Problem
from hpcbal.safe_text import shortened

_MAX_SHOWN = 60


def show(value: Any) -> str:
    """Write a value as YAML, shortened to fit one line."""
    return "nothing (null)" if value is None else shortened(_written(value), _MAX_SHOWN)


def _written(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_written(key)}: {_written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_written, value)) + "]"
    return repr(value)


Key: TypeAlias = str | int | float | bool | None
Path: TypeAlias = tuple[str | int, ...]


@dataclass(slots=True)
class YamlNode:
    """One value of a configuration file.

    Attributes:
        value: a scalar, a list of nodes, or nodes by key.
        where: `file.yaml:14` or `--set a.b=c`.
        key: dotted path of the value as written; "" for the whole file.
    """

    value: Any
    where: str
    key: str

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.value, dict)

    @property
    def is_list(self) -> bool:
        return isinstance(self.value, list)

    def get(self, key: Key) -> YamlNode | None:
        """The child with that key (or list index); None if there is none."""
        value = self.value
        child: YamlNode | None = None
        if isinstance(value, dict):
            child = value.get(key)
        elif isinstance(value, list) and isinstance(key, int) and 0 <= key < len(value):
            child = value[key]
        return child

    def deepest(self, path: Iterable[str | int]) -> tuple[YamlNode, Path]:
        """Follow `path` as far as it exists; return (the last node, the rest of the path)."""
        node: YamlNode = self
        parts = tuple(path)
        for i, part in enumerate(parts):
            child = node.get(part)
            if child is None:
                return node, parts[i:]
            node = child
        return node, ()

    def plain(self) -> Any:
        """The value without its origins: scalars, lists and dicts."""
        value = self.value
        if isinstance(value, dict):
            return {key: child.plain() for key, child in value.items()}
        if isinstance(value, list):
            return [child.plain() for child in value]
        return value

    def own_child(self, key: Key) -> YamlNode | None:
        """The child with that key, replaced by a copy that may get other children.

        DNNs share what `defaults` and the body of a sweep give them; who changes one child of many copies
        what is on the way to it, and nothing else.
        """
        child = self.get(key)
        if child is None or not isinstance(child.value, dict | list):
            return child
        self.value[key] = own = YamlNode(child.value.copy(), child.where, child.key)
        return own

    def problem(self, message: str) -> str:
        """A `Problem` for the user: place, key, message; long keys are shortened."""
        if not self.key or self.where.startswith(f"--set {self.key}="):
            return Problem(f"{self.where}: {message}", self.where, self.key)
        return Problem(f"{self.where}: {shortened(self.key)}: {message}", self.where, self.key)


def join_key(parent: str, child: Key) -> str:
    """Dotted path of a child."""
    return f"{parent}.{child}" if parent else str(child)


def wrap(value: Any, where: str, key: str) -> YamlNode:
    """Make a tree of nodes from plain values that were all written in one place."""
    if isinstance(value, dict):
        return YamlNode({k: wrap(v, where, join_key(key, k)) for k, v in value.items()}, where, key)
    if isinstance(value, list):
        return YamlNode([wrap(v, where, join_key(key, i)) for i, v in enumerate(value)], where, key)
    return YamlNode(value, where, key)

"""A configuration as a tree of values that remember where they were written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

Key: TypeAlias = str | int | float | bool | None
Path: TypeAlias = tuple[str | int, ...]


@dataclass(slots=True)
class Node:
    """One value of a configuration.

    Attributes:
        value: a scalar, a list of nodes, or nodes by key.
        where: `file.yaml:14` or `--set a.b=c`.
        key: dotted path at which it was written; "" for the whole file.
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

    def get(self, key: Key) -> Node | None:
        """The child of that key (or list index), None where there is none."""
        if isinstance(self.value, dict):
            child = self.value.get(key)
            return child if isinstance(child, Node) else None
        if isinstance(self.value, list) and isinstance(key, int) and 0 <= key < len(self.value):
            item: Node = self.value[key]
            return item
        return None

    def deepest(self, path: Iterable[str | int]) -> tuple[Node, Path]:
        """Follow `path` as far as it exists: (the last node, what was left of the path)."""
        node: Node = self
        parts = tuple(path)
        for i, part in enumerate(parts):
            child = node.get(part)
            if child is None:
                return node, parts[i:]
            node = child
        return node, ()

    def plain(self) -> Any:
        """The value without its origins: scalars, lists and dicts."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value

    def copy(self) -> Node:
        """A deep copy; scalars and origins are shared."""
        if isinstance(self.value, dict):
            return Node({key: child.copy() for key, child in self.value.items()}, self.where, self.key)
        if isinstance(self.value, list):
            return Node([child.copy() for child in self.value], self.where, self.key)
        return Node(self.value, self.where, self.key)

    def problem(self, message: str) -> str:
        """One line for the user: where, key, message."""
        if not self.key or self.where.startswith(f"--set {self.key}="):
            return f"{self.where}: {message}"
        return f"{self.where}: {self.key}: {message}"


def join_key(parent: str, child: Key) -> str:
    """Dotted path of a child."""
    return f"{parent}.{child}" if parent else str(child)


def wrap(value: Any, where: str, key: str) -> Node:
    """A tree of nodes out of plain values that were all written at one place."""
    if isinstance(value, dict):
        return Node({k: wrap(v, where, join_key(key, k)) for k, v in value.items()}, where, key)
    if isinstance(value, list):
        return Node([wrap(v, where, join_key(key, i)) for i, v in enumerate(value)], where, key)
    return Node(value, where, key)


def merged(own: Node, default: Node) -> Node:
    """`own`, and every key of `default` that it lacks, mapping by mapping; a list counts as one value."""
    if not (own.is_mapping and default.is_mapping):
        return own
    result = dict(own.value)
    for key, child in default.value.items():
        result[key] = merged(result[key], child) if key in result else child.copy()
    return Node(result, own.where, own.key)

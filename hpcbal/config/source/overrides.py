"""Apply `--set a.b=c` to a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcbal.config.source.meant import did_you_mean
from hpcbal.config.source.nodes import YamlNode, join_key, show
from hpcbal.config.source.yaml_source import parse_yaml
from hpcbal.errors import ConfigError
from hpcbal.safe_text import shortened


@dataclass(frozen=True, slots=True)
class Override:
    """One `--set`: the dotted path, the value as YAML, and the text for messages."""

    path: str
    value: YamlNode
    where: str


def parse_overrides(texts: Sequence[str]) -> tuple[list[Override], list[str]]:
    """Read `key=value` texts; (overrides, problems)."""
    overrides: list[Override] = []
    problems: list[str] = []
    for text in texts:
        path, equals, value = text.partition("=")
        where = f"--set {shortened(text)}"
        if not equals or not path.strip() or ".." in path or path.startswith(".") or path.endswith("."):
            problems.append(f"{where}: got {shortened(text)!r}, allowed: key=value, e.g. schedule.alpha=0.9")
            continue
        try:
            node = parse_yaml(value, where, fixed_where=where)
        except ConfigError as error:
            problems.extend(error.problems)
            continue
        overrides.append(Override(path.strip(), _rekeyed(node, path.strip()), where))
    return overrides, problems


def apply_override(root: YamlNode, override: Override) -> str | None:
    """Set the value in place; create missing sections on the path.

    Items of a list are addressed by name, if they have one, or by index. Keys that contain dots (names of
    DNNs) are recognised if they exist.

    Returns:
        None, or the problem.
    """
    node, rest = root, override.path
    while True:
        if node.value is None:
            node.value = {}
        if node.is_list:
            named = any(item.get("name") is not None for item in node.value)
            index, rest = _item_of(node, rest, named=named)
            if index is None:
                return f"{override.where}: {_no_item(node, rest, named=named)}"
            if not rest:
                node.value[index] = override.value
                return None
            node = node.own_child(index) or node
            continue
        if not node.is_mapping:
            return f"{override.where}: {shortened(node.key)} is {show(node.value)}, not a section with keys"
        key, rest = _key_of(node, rest)
        if not rest:
            node.value[key] = override.value
            return None
        child = node.own_child(key)
        if child is None:
            child = YamlNode({}, override.where, join_key(node.key, key))
            node.value[key] = child
        node = child


def _rekeyed(node: YamlNode, key: str) -> YamlNode:
    """The same tree, with keys written from the root of the configuration."""
    if node.is_mapping:
        value = {k: _rekeyed(child, join_key(key, k)) for k, child in node.value.items()}
        return YamlNode(value, node.where, key)
    if node.is_list:
        value_list = [_rekeyed(child, join_key(key, i)) for i, child in enumerate(node.value)]
        return YamlNode(value_list, node.where, key)
    return YamlNode(node.value, node.where, key)


def _key_of(node: YamlNode, rest: str) -> tuple[str | int, str]:
    """Split off the first key: the longest existing one, else up to the first dot."""
    known = [k for k in node.value if isinstance(k, str) and (rest == k or rest.startswith(f"{k}."))]
    if known:
        key = max(known, key=len)
        return key, rest[len(key) + 1 :]
    head, _, tail = rest.partition(".")
    index = _index(head)
    if index is not None and index in node.value:
        return index, tail
    return head, tail


def _item_of(node: YamlNode, rest: str, *, named: bool) -> tuple[int | None, str]:
    if named:
        matches = []
        for i, item in enumerate(node.value):
            name_node = item.get("name")
            name = name_node.value if name_node is not None else None
            if isinstance(name, str) and (rest == name or rest.startswith(f"{name}.")):
                matches.append((len(name), -i))
        if matches:
            length, negative = max(matches)
            return -negative, rest[length + 1 :]
    head, _, tail = rest.partition(".")
    index = _index(head)
    if index is not None and index < len(node.value):
        return index, tail
    return None, head


def _index(text: str) -> int | None:
    """The number that a part of a path is, if it is one; no list has an index of ten digits."""
    return int(text) if text.isdecimal() and len(text) < 10 else None


def _no_item(node: YamlNode, given: str, *, named: bool) -> str:
    count = len(node.value)
    if not count:
        return f"{node.key} is empty"
    indices = f"an index from 0 to {count - 1}"
    if not named:
        return f"{shortened(node.key)} has no item {shortened(given)!r}, allowed: {indices}"
    name_nodes = [item.get("name") for item in node.value]
    names = [str(n.value) for n in name_nodes if n is not None]
    owner, hint = shortened(node.key), did_you_mean(given, names)
    return f"{owner} has no {shortened(given)!r}, allowed: a name or {indices}{hint}"

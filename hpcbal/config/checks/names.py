"""Names that a file gives: those of what it lists, each of which is a directory, and keys of arguments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hpcbal.config.source.nodes import Key, YamlNode
from hpcbal.config.source.shown import show


def items_of(root: YamlNode, key: str) -> list[YamlNode]:
    """The items of the list at the top-level key; none if there is no list."""
    listed = root.get(key)
    return listed.value if listed is not None and listed.is_list else []


def name_nodes(root: YamlNode, key: str) -> list[YamlNode]:
    """The `name` nodes of all items of the list whose name is text."""
    names = [item.get("name") for item in items_of(root, key)]
    return [name for name in names if name is not None and isinstance(name.value, str)]


def duplicate_names(root: YamlNode, key: str, one: str) -> list[str]:
    """Problems with items of the list whose names are equal, or differ only in case.

    Args:
        root: the written-out configuration.
        key: key of the list.
        one: what users call an item.
    """
    first_by_name: dict[str, YamlNode] = {}
    problems: dict[str, None] = {}
    for node in name_nodes(root, key):
        first = first_by_name.setdefault(node.value.casefold(), node)
        if first is not node:
            at = "" if first.where == node.where else f" (first at {first.where})"
            advice = "allowed: a different name for each"
            same = f"for more than one {one}"
            if first.value != node.value:
                same = f"beside {show(first.value)}"
                advice += ", not only by upper and lower case"
            if node.key.startswith("sweeps."):
                advice += ", e.g. with more {placeholders}"
            problems[node.problem(f"got {show(node.value)} {same}{at}, {advice}")] = None
    return list(problems)


def keys_not_text(owners: Iterable[YamlNode | None]) -> list[str]:
    """Problems with keys that are not text in `args` of the owners, at any depth: args are stored as JSON."""
    given = [owner.get("args") for owner in owners if owner is not None]
    problems = [
        node.problem(f"got the key {show(key)}, allowed: text; write '{_in_file(key)}' with the quotes")
        for args in given
        if args is not None and args.is_mapping
        for key, node in _mapping_items(args)
        if not isinstance(key, str)
    ]
    return list(dict.fromkeys(problems))


def _mapping_items(node: YamlNode) -> Iterator[tuple[Key, YamlNode]]:
    """(key, value) pairs of all mappings in a value, at any depth."""
    if node.is_mapping:
        yield from node.value.items()
    for child in node.value.values() if node.is_mapping else node.value if node.is_list else ():
        yield from _mapping_items(child)


def _in_file(key: Key) -> str:
    """How to write a key that is not text, so that it becomes text."""
    return "null" if key is None else str(key).lower()

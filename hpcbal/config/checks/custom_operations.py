"""Where a written-out configuration names operations of the user by their import paths."""

from __future__ import annotations

from hpcbal.config.schema.section import is_import_path
from hpcbal.config.source.nodes import YamlNode


def own_operations(root: YamlNode) -> list[YamlNode]:
    """The operations of the user, each as a mapping with `operation` (its import path) and `args`.

    Args:
        root: a written-out configuration, which may have problems.
    """
    items = root.get("preprocessing")
    found: list[YamlNode] = []
    for item in items.value if items is not None and items.is_list else []:
        if not is_own(item):
            continue
        if not item.is_mapping:
            found.append(YamlNode({"operation": item}, item.where, item.key))
            continue
        for name, args in item.value.items():
            path = YamlNode(name, args.where, args.key)
            entry = {"operation": path} if args.value is None else {"operation": path, "args": args}
            found.append(YamlNode(entry, item.where, item.key))
    return found


def is_own(item: YamlNode) -> bool:
    """Whether an entry of `preprocessing` names an operation of the user."""
    names = list(item.value) if item.is_mapping else [item.value]
    return len(names) == 1 and isinstance(names[0], str) and is_import_path(names[0])

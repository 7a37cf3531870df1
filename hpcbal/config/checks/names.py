"""Names in a file: of what it lists, of the user's operations, of packages that it needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from hpcbal.config.schema.objective import LossConfig
from hpcbal.config.schema.operations import OF
from hpcbal.config.schema.section import is_import_path
from hpcbal.config.source.nodes import Key, YamlNode, show


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


def keys_not_text(root: YamlNode) -> list[str]:
    """Problems with keys that are not text in any `args`, at any depth: args are stored as JSON.

    Args:
        root: a written-out configuration of any kind, which may have problems.
    """
    given = [owner.get("args") for owner in (*_with_args(root), *own_operations(root))]
    problems = [
        node.problem(f"got the key {show(key)}, allowed: text; write '{_in_file(key)}' with the quotes")
        for args in given
        if args is not None and args.is_mapping
        for key, node in _mapping_items(args)
        if not isinstance(key, str)
    ]
    return list(dict.fromkeys(problems))


def _with_args(node: YamlNode) -> Iterator[YamlNode]:
    """The mappings in a value that have `args`, at any depth, but for those inside of `args`."""
    if node.is_mapping and "args" in node.value:
        yield node
    named = node.value.items() if node.is_mapping else enumerate(node.value) if node.is_list else ()
    for key, child in named:
        if key != "args":
            yield from _with_args(child)


def _mapping_items(node: YamlNode) -> Iterator[tuple[Key, YamlNode]]:
    """(key, value) pairs of all mappings in a value, at any depth."""
    if node.is_mapping:
        yield from node.value.items()
    for child in node.value.values() if node.is_mapping else node.value if node.is_list else ():
        yield from _mapping_items(child)


def _in_file(key: Key) -> str:
    """How to write a key that is not text, so that it becomes text."""
    return "null" if key is None else str(key).lower()


def own_operations(root: YamlNode) -> list[YamlNode]:
    """The operations of the user, each as a mapping with `operation` (its import path) and `args`.

    Args:
        root: a written-out configuration, which may have problems.
    """
    lists = [root.get("preprocessing"), *(dnn.get("augment") for dnn in items_of(root, "dnns"))]
    found: list[YamlNode] = []
    for item in [item for items in lists if items is not None and items.is_list for item in items.value]:
        if not is_own(item):
            continue
        if not item.is_mapping:
            found.append(YamlNode({"operation": item}, item.where, item.key))
            continue
        for name, args in item.value.items():
            if name == OF:
                continue
            path = YamlNode(name, args.where, args.key)
            entry = {"operation": path} if args.value is None else {"operation": path, "args": args}
            found.append(YamlNode(entry, item.where, item.key))
    return found


def is_own(item: YamlNode) -> bool:
    """Whether an entry of `preprocessing` or `augment` names an operation of the user."""
    names = [name for name in item.value if name != OF] if item.is_mapping else [item.value]
    return len(names) == 1 and isinstance(names[0], str) and is_import_path(names[0])


def is_by_output(node: YamlNode) -> bool:
    """Whether the value of `loss` or `metrics` is a mapping by the names of outputs."""
    return node.is_mapping and bool(node.value) and not node.value.keys() & LossConfig.model_fields.keys()


def package_problems(root: YamlNode) -> list[str]:
    """Problems of a written-out configuration: what needs packages that are missing."""
    return [*_search_problems(root), *_predictor_problems(root)]


def _search_problems(root: YamlNode) -> list[str]:
    """A search that is not over, and needs optuna."""
    searches = root.get("searches")
    items = searches.value if searches is not None and searches.is_list else []
    open_ones = [node for node in items if node.is_mapping and _num_open(node.plain()) > 0]
    if not open_ones or find_spec("optuna") is not None:
        return []
    return [
        node.problem(
            "search.sampler: got tpe, which needs optuna, not installed here; pip install 'hpcbal[search]', "
            "or take sampler: random"
        )
        for node in open_ones
    ]


def _num_open(search: Mapping[str, Any]) -> int:
    try:
        return int(search["search"]["samples"]) - len(search["drawn"])
    except (KeyError, TypeError, ValueError):
        return 0  # which another check reports


def _predictor_problems(root: YamlNode) -> list[str]:
    """A speed predictor in use whose package is missing."""
    balance = root.get("balance")
    predictor = balance.get("predictor") if balance is not None and balance.is_mapping else None
    if predictor is None or predictor.value != "narx" or find_spec("psutil") or not _predicts_speeds(root):
        return []
    return [
        predictor.problem(
            "got 'narx', which needs psutil, not installed here; pip install 'hpcbal[balance]', or take "
            "memoryless"
        )
    ]


def _predicts_speeds(root: YamlNode) -> bool:
    """Whether any DNN is balanced by a policy that takes a predictor."""
    from hpcbal.policies.batching import BATCHING

    dnns = root.get("dnns")
    entries = dnns.value if dnns is not None and dnns.is_list else []
    policy = root.deepest(("balance", "policy"))[0].value
    own = [dnn.get("balance") for dnn in entries if dnn.is_mapping]
    found = [policy if node is None or node.value is None else node.value for node in own]
    names = [name for name in found if isinstance(name, str) and name in BATCHING]
    return any(BATCHING[name].takes_predictor for name in names)

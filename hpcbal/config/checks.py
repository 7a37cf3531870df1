"""Checks across sections, on values that may still be wrong elsewhere, so that all errors come at once."""

from __future__ import annotations

from hpcbal.config.dnn_schema import OPTIMIZERS
from hpcbal.config.nodes import Node
from hpcbal.config.suggest import did_you_mean


def cross_problems(root: Node) -> list[str]:
    """Problems between sections of the written-out configuration `root`."""
    return [*_duplicate_names(root), *_emulated_rates(root), *_emulated_optimizers(root)]


def _dnn_names(root: Node) -> list[Node]:
    """The `name` nodes of all DNNs that have a text as name."""
    dnns = root.get("dnns")
    items = dnns.value if dnns is not None and dnns.is_list else []
    names = [item.get("name") for item in items]
    return [name for name in names if name is not None and isinstance(name.value, str)]


def _duplicate_names(root: Node) -> list[str]:
    first_by_name: dict[str, Node] = {}
    problems: dict[str, None] = {}
    for node in _dnn_names(root):
        first = first_by_name.setdefault(node.value, node)
        if first is not node:
            at = "" if first.where == node.where else f" (first at {first.where})"
            advice = "allowed: names that differ"
            if node.key.startswith("sweeps."):
                advice += ", e.g. with more {placeholders}"
            problems[node.problem(f"got {node.value!r} for more than one DNN{at}, {advice}")] = None
    return list(problems)


def _emulated_rates(root: Node) -> list[str]:
    backend = root.get("backend")
    if backend is None or not backend.is_mapping:
        return []
    rates = backend.get("rates")
    names = list(dict.fromkeys(node.value for node in _dnn_names(root)))
    given = rates.value if rates is not None and rates.is_mapping else {}
    problems = [
        node.problem(f"no DNN of that name{did_you_mean(name, names)}, allowed: {_some(names)}")
        for name, node in given.items()
        if name not in names
    ]
    kind = backend.get("name")
    missing = [name for name in names if name not in given]
    if kind is not None and kind.value == "emulated" and missing:
        where = rates if rates is not None else kind
        problems.append(
            where.problem(
                f"no rates for {_some(missing)}; the emulated backend needs "
                "backend.rates: {dnn name: {1: samples/s}} for every DNN"
            )
        )
    return problems


def _emulated_optimizers(root: Node) -> list[str]:
    name, _ = root.deepest(("backend", "name"))
    dnns = root.get("dnns")
    if name.value != "emulated" or dnns is None or not dnns.is_list:
        return []
    problems: dict[str, None] = {}
    for dnn in dnns.value:
        optimizer, rest = dnn.deepest(("optimizer", "name"))
        if not rest and optimizer.value in OPTIMIZERS and optimizer.value != "sgd":
            message = f"got {optimizer.value!r}, allowed: sgd with the emulated backend"
            problems[optimizer.problem(message)] = None
    return list(problems)


def _some(names: list[str], limit: int = 8) -> str:
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"

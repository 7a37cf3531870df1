"""Check that losses and metrics take the labels that mixed samples have."""

from __future__ import annotations

from collections.abc import Iterator

from hpcbal.config.schema.operations import MIXING
from hpcbal.config.source.nodes import YamlNode

_SPARSE = "sparse_"
"""Names of Keras for losses and metrics of labels that are the number of a class."""


def mixed_label_problems(root: YamlNode) -> list[str]:
    """Reject losses and metrics that need the number of a class where mixing makes distributions of classes.

    Args:
        root: a written-out configuration, which may have other problems.
    """
    mixing = _mixing_operation(root)
    dnns = root.get("dnns")
    if mixing is None or dnns is None or not dnns.is_list:
        return []
    problems: dict[str, None] = {}
    for dnn in dnns.value:
        for key, node in _losses_and_metrics(dnn):
            if isinstance(node.value, str) and node.value.startswith(_SPARSE):
                remedy = "leave it out, or " if key == "loss" else ""
                problem = node.problem(
                    f"got {node.value!r}, but {mixing} in preprocessing turns labels into distributions over "
                    f"classes; {remedy}use {node.value.removeprefix(_SPARSE)}"
                )
                problems[problem] = None
    return list(problems)


def _mixing_operation(root: YamlNode) -> str | None:
    """The name of the first operation on pairs of samples."""
    items = root.get("preprocessing")
    for item in items.value if items is not None and items.is_list else []:
        names = list(item.value) if item.is_mapping else [item.value]
        found = [name for name in names if name in MIXING]
        if found:
            return str(found[0])
    return None


def _losses_and_metrics(dnn: YamlNode) -> Iterator[tuple[str, YamlNode]]:
    """(`loss` or `metrics`, the node of its name) of everything that a DNN names."""
    if not dnn.is_mapping:
        return
    metrics = dnn.get("metrics")
    given = [("loss", dnn.get("loss"))]
    given += [("metrics", node) for node in (metrics.value if metrics and metrics.is_list else ())]
    for key, node in given:
        if node is not None:
            yield key, node.get("name") or node

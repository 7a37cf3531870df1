"""Warn of losses that `prune` compares, although they do not mean the same."""

from __future__ import annotations

from hpcbal.config.schema.ensemble import EnsembleConfig
from hpcbal.config.source.nodes import YamlNode
from hpcbal.config.source.shown import show
from hpcbal.values.metric_names import LOSS, base_name

_KEYS = ("loss", "label_smoothing", "class_weights")
"""Keys of a DNN on which the value of its loss depends."""


def compared_losses(config: EnsembleConfig, root: YamlNode) -> list[str]:
    """A line in the form of problems if DNNs are compared by losses that are computed differently.

    Args:
        config: the validated configuration; all DNNs that are compared watch the same metric.
        root: the written-out configuration that was validated.
    """
    dnns = [dnn for dnn in config.dnns if config.prune.covers(dnn.name)]
    if not dnns or base_name(dnns[0].stop.watched) != LOSS:
        return []
    differ = [name for name in _KEYS if any(getattr(dnn, name) != getattr(dnns[0], name) for dnn in dnns)]
    if not differ:
        return []
    node, _ = root.deepest(("prune", "rule"))
    return [
        node.problem(
            f"got {show(node.plain())}, which compares {dnns[0].stop.watched} of DNNs that differ in "
            f"{', '.join(differ)}, so it does not mean the same for all: let stop.monitor be a metric, or "
            "limit prune.dnns to DNNs that are alike"
        )
    ]

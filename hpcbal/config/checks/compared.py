"""Warn of losses that `prune` or tables compare, although they do not mean the same."""

from __future__ import annotations

from hpcbal.config.schema.ensemble import EnsembleConfig
from hpcbal.config.source.nodes import YamlNode
from hpcbal.config.source.shown import show
from hpcbal.values.metric_names import LOSS, base_name

_KEYS = ("loss", "label_smoothing", "class_weights")
"""Keys of a DNN on which the value of its loss depends."""
_KEYS_IN_VALIDATION = ("loss", "label_smoothing")
"""Those that also change the loss of validation samples."""


def compared_losses(config: EnsembleConfig, root: YamlNode) -> list[str]:
    """A line in the form of problems if DNNs are compared by losses that are computed differently.

    Args:
        config: the validated configuration; all DNNs that are compared watch the same metric.
        root: the written-out configuration that was validated.
    """
    dnns = [dnn for dnn in config.dnns if config.prune.covers(dnn.name)]
    if not dnns or base_name(dnns[0].stop.watched) != LOSS:
        return _ranked_by_loss(config, root)
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


def _ranked_by_loss(config: EnsembleConfig, root: YamlNode) -> list[str]:
    """The same if tables and charts rank DNNs by such losses, because no metric is common to all of them."""
    first, *others = config.dnns
    if set(first.metric_keys).intersection(*(dnn.metric_keys for dnn in others)):
        return []
    differ = [
        key for key in _KEYS_IN_VALIDATION if any(getattr(dnn, key) != getattr(first, key) for dnn in others)
    ]
    if not differ:
        return []
    node, _ = root.deepest(("dnns",))
    return [
        node.problem(
            f"the DNNs differ in {' and '.join(differ)} and have no metric in common, so tables compare "
            "losses that do not mean the same; give all DNNs one metric in common"
        )
    ]

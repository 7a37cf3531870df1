"""Tell of keys that do not go with the number of GPUs of a DNN's trainer group."""

from __future__ import annotations

from hpcbal.config.nodes import Node
from hpcbal.config.schema import RunConfig


def size_warnings(config: RunConfig, root: Node) -> list[str]:
    """What the file alone tells of groups that may be formed; `plan` and `run` know more and tell themselves.

    Args:
        config: as validated.
        root: the written-out configuration that it was validated from.

    Returns:
        Lines as those of problems: weights of `fixed` that take more than a node.
    """
    return _weights_of_several_nodes(config, root)


def _weights_of_several_nodes(config: RunConfig, root: Node) -> list[str]:
    """Weights of `fixed` for more GPUs than a node has: a start on too few nodes is refused."""
    per_node = config.slots.per_node
    if not isinstance(per_node, int):
        return []
    lines: dict[str, None] = {}
    for index, dnn in enumerate(config.dnns):
        shares = dnn.shares or config.balance.shares
        if (dnn.balance or config.balance.policy) == "fixed" and len(shares) > per_node:
            node, _ = root.deepest(("dnns", index, "shares") if dnn.shares else ("balance", "shares"))
            nodes = -(-len(shares) // per_node)
            told = f"got {len(shares)} weights with slots.per_node {per_node}"
            lines[node.problem(f"{told}; a run on fewer than {nodes} nodes will be refused")] = None
    return list(lines)

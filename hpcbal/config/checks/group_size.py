"""Warn of keys that may not fit the number of GPUs of a DNN's trainer group."""

from __future__ import annotations

from collections.abc import Mapping

from hpcbal.config.balance import balances_of, resolve_balance
from hpcbal.config.schema.ensemble import EnsembleConfig
from hpcbal.config.source.nodes import YamlNode

_MAX_NAMES = 4


def size_warnings(config: EnsembleConfig, root: YamlNode) -> list[str]:
    """Warn of groups that may be formed, from the file alone; `plan` and `run` know more and warn themselves.

    Args:
        config: the validated configuration.
        root: the written-out configuration that was validated.

    Returns:
        Lines in the form of problems: weights of `fixed` for more GPUs than a node has, and a limit for GPUs
        that no group can keep.
    """
    return [*_weights_of_several_nodes(config, root), *_limit_never_kept(config, root)]


def over_limit(
    config: EnsembleConfig, num_gpus_by_dnn: Mapping[str, int], num_train: int | None = None
) -> dict[str, str]:
    """Find the DNNs whose even share of a step is above `balance.max_samples_per_gpu`, and by how much.

    An even share is always allowed; otherwise no split would be possible.

    Args:
        num_gpus_by_dnn: number of GPUs of the group, >= 1, by name of its DNN.
        num_train: training samples of a pass, the most that a step can have; None: not known.

    Returns: text such as '32 of 64 samples on 2 GPUs', by name; DNNs with policy `even` are left out.
    """
    limit = config.balance.max_samples_per_gpu
    if limit is None:
        return {}
    found = {}
    for dnn in config.dnns:
        num_gpus = num_gpus_by_dnn.get(dnn.name)
        if num_gpus is None or resolve_balance(config.balance, dnn).policy.splits_evenly:
            continue
        num_samples = dnn.batch_size if num_train is None else min(dnn.batch_size, num_train)
        share = -(-num_samples // num_gpus)
        if share > limit:
            on = "1 slot" if num_gpus == 1 else f"{num_gpus} slots"
            found[dnn.name] = f"{share} of {num_samples} samples on {on}"
    return found


def told_limit(limit: int | None, over: Mapping[str, str]) -> str:
    """Describe in one sentence what `over_limit` found, which is not empty."""
    shown = [f"{name} ({share})" for name, share in list(over.items())[:_MAX_NAMES]]
    if len(over) > _MAX_NAMES:
        shown.append(f"{len(over) - _MAX_NAMES} more")
    return (
        f"got {limit}, less than an even share, which is always allowed: {', '.join(shown)}; shares stay even"
    )


def _weights_of_several_nodes(config: EnsembleConfig, root: YamlNode) -> list[str]:
    """Warn of weights of `fixed` for more GPUs than a node has: a start on too few nodes is refused."""
    per_node = config.slots.per_node
    has_weights = config.balance.shares or any(dnn.shares for dnn in config.dnns)
    if not isinstance(per_node, int) or not has_weights:
        return []
    lines: dict[str, None] = {}
    for index, balance in enumerate(balances_of(config).values()):
        num_weights = len(balance.shares)
        if num_weights > per_node:
            own = balance.shares_are_own
            node, _ = root.deepest(("dnns", index, "shares") if own else ("balance", "shares"))
            nodes = -(-num_weights // per_node)
            given = f"got {num_weights} weights with slots.per_node {per_node}"
            lines[node.problem(f"{given}; a run on fewer than {nodes} nodes will be refused")] = None
    return list(lines)


def _limit_never_kept(config: EnsembleConfig, root: YamlNode) -> list[str]:
    """Warn of a limit below an even share in the largest group that a DNN may have."""
    most = config.schedule.gpu_limit
    over = {} if most is None else over_limit(config, {dnn.name: most for dnn in config.dnns})
    if not over:
        return []
    node, _ = root.deepest(("balance", "max_samples_per_gpu"))
    message = told_limit(config.balance.max_samples_per_gpu, over)
    return [node.problem(f"{message} (schedule.max_gpus_per_dnn allows no more slots)")]

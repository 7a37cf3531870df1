"""Checks across sections, on values that other checks may still reject, so that all errors come together."""

from __future__ import annotations

from fnmatch import fnmatchcase

from hpcbal.config.checks.custom_operations import own_operations
from hpcbal.config.checks.names import duplicate_names, items_of, keys_not_text, name_nodes
from hpcbal.config.checks.shares import too_few_samples
from hpcbal.config.schema.ensemble import BalanceConfig
from hpcbal.config.schema.optimizer import OPTIMIZERS
from hpcbal.config.schema.prune import NO_RULE
from hpcbal.config.source.nodes import YamlNode
from hpcbal.config.source.shown import show
from hpcbal.config.source.suggest import did_you_mean
from hpcbal.errors import MOST_PROBLEMS
from hpcbal.values.metric_names import VALIDATION

_OF_OBJECTIVE = ("loss", "metrics", "label_smoothing", "class_weights")
DEFAULT_POLICY = BalanceConfig.model_fields["policy"].default


def cross_problems(root: YamlNode) -> list[str]:
    """Problems between sections of the written-out configuration `root`."""
    return [
        *duplicate_names(root, "dnns", "DNN"),
        *_keys_in_args(root),
        *_emulated_rates(root),
        *_emulated_optimizers(root),
        *_emulated_objectives(root),
        *_fixed_shares(root),
        *_shares_in_vain(root),
        *_partitioned(root),
        *_parts_never_used(root),
        *_chronica_without_parts(root),
        *_monitors_without_validation(root),
        *_patterns_in_vain(root),
    ]


def _patterns_in_vain(root: YamlNode) -> list[str]:
    """Reject patterns in `prune.dnns` that no DNN matches."""
    patterns, rest = root.deepest(("prune", "dnns"))
    names = [node.value for node in name_nodes(root, "dnns")]
    if rest or not patterns.is_list or not names:
        return []
    return [
        node.problem(
            f"got {show(node.value)}, which no DNN matches{did_you_mean(node.value, names)}, "
            f"allowed: {_some(list(dict.fromkeys(names)))}, or a pattern with * or ?"
        )
        for node in patterns.value
        if isinstance(node.value, str) and not any(fnmatchcase(name, node.value) for name in names)
    ]


def _keys_in_args(root: YamlNode) -> list[str]:
    """Reject keys in `args` of data, DNNs and operations that are not text."""
    data = root.get("data")
    held_out = [data.get(name) for name in ("validation", "test")] if data is not None else []
    return keys_not_text([data, *held_out, *items_of(root, "dnns"), *own_operations(root)])


def _emulated_rates(root: YamlNode) -> list[str]:
    backend = root.get("backend")
    if backend is None or not backend.is_mapping:
        return []
    rates = backend.get("rates")
    names = dict.fromkeys(node.value for node in name_nodes(root, "dnns"))
    given = rates.value if rates is not None and rates.is_mapping else {}
    unknown = [(name, node) for name, node in given.items() if name not in names]
    problems = [
        node.problem(f"no DNN of that name{did_you_mean(name, names)}, allowed: {_some(list(names))}")
        for name, node in unknown[: MOST_PROBLEMS + 1]
        if names
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


def _emulated_optimizers(root: YamlNode) -> list[str]:
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


def _emulated_objectives(root: YamlNode) -> list[str]:
    """Reject losses, metrics and weights that the emulated backend does not compute."""
    name, _ = root.deepest(("backend", "name"))
    dnns = root.get("dnns")
    if name.value != "emulated" or dnns is None or not dnns.is_list:
        return []
    problems: dict[str, None] = {}
    for dnn in dnns.value:
        for key in _OF_OBJECTIVE if dnn.is_mapping else ():
            node = dnn.get(key)
            if node is not None and node.value not in (None, 0, 0.0):
                message = f"got {show(node.plain())}, allowed: nothing with the emulated backend, which "
                problems[node.problem(message + "trains on the cross entropy of classes")] = None
    return list(problems)


def _fixed_shares(root: YamlNode) -> list[str]:
    """A policy that takes weights, of the run or of a DNN, needs some."""
    if _has_weights(root.get("balance")):
        return []
    dnns = root.get("dnns")
    without = [d for d in (dnns.value if dnns is not None and dnns.is_list else []) if not _has_weights(d)]
    problems: dict[str, None] = {}
    for dnn in without:
        own, rest = dnn.deepest(("balance",))
        if not rest and _takes_shares(own.value):
            section = "dnns.N" if own.key.startswith("defaults.") else dnn.key
            places = f"{section}.shares, or balance.shares for all DNNs"
        else:
            own, rest = root.deepest(("balance", "policy"))
            if rest or not _takes_shares(own.value) or _has_own_balance(dnn):
                continue
            places = "balance.shares, or shares in each DNN"
        problems[own.problem(f"got {own.value!r} without weights; give {places}, for example [2, 1, 1]")] = (
            None
        )
    return list(problems)


def _shares_in_vain(root: YamlNode) -> list[str]:
    """Reject more weights than GPUs that a DNN may have; the run checks against the real GPUs."""
    limit, rest = root.deepest(("schedule", "max_gpus_per_dnn"))
    if rest or not isinstance(limit.value, int):
        return []
    policy, rest = root.deepest(("balance", "policy"))
    default = None if rest else policy.value
    dnns = root.get("dnns")
    problems: dict[str, None] = {}
    for dnn in dnns.value if dnns is not None and dnns.is_list else []:
        own, rest = dnn.deepest(("balance",))
        if not _takes_shares(own.value if not rest and own.value is not None else default):
            continue
        shares = (dnn if _has_weights(dnn) else root.get("balance") or root).get("shares")
        if shares is not None and shares.is_list and len(shares.value) > limit.value:
            message = f"got {len(shares.value)} weights, allowed: at most {limit.value}"
            problems[shares.problem(f"{message} with schedule.max_gpus_per_dnn {limit.value}")] = None
    return list(problems)


def _takes_shares(policy: object) -> bool:
    """Whether this value, which may be wrong, names a policy that takes weights."""
    if policy in (None, DEFAULT_POLICY):  # takes none; most configurations are checked without loading NumPy
        return False
    from hpcbal.policies.batching import BATCHING

    return isinstance(policy, str) and policy in BATCHING and BATCHING[policy].takes_shares


def _has_own_balance(dnn: YamlNode) -> bool:
    """Whether the DNN has its own `balance`."""
    own, rest = dnn.deepest(("balance",))
    return not rest and own.value is not None


def _has_weights(section: YamlNode | None) -> bool:
    shares = None if section is None else section.get("shares")
    return shares is not None and shares.is_list and bool(shares.value)


def _partitioned(root: YamlNode) -> list[str]:
    """Partitioned data is for one DNN, whose group stays the same from step to step."""
    access, rest = root.deepest(("data", "access"))
    if rest or access.value != "partitioned":
        return []
    problems = []
    dnns = root.get("dnns")
    num_dnns = len(dnns.value) if dnns is not None and dnns.is_list else 1
    if num_dnns != 1:
        problems.append(
            access.problem(f"got 'partitioned' for {num_dnns} DNNs, allowed: for a single DNN; use 'shared'")
        )
    paradigm, rest = root.deepest(("schedule", "paradigm"))
    if not rest and paradigm.value not in ("auto", "global"):
        problems.append(
            paradigm.problem(
                f"got {show(paradigm.value)}, allowed: auto or global with data.access 'partitioned'"
            )
        )
    return problems


def _parts_never_used(root: YamlNode) -> list[str]:
    """Reject steps with fewer samples than one node has GPUs; only the run knows the number of nodes."""
    if root.deepest(("data", "access"))[0].value != "partitioned":
        return []
    slots = _count_at(root, "slots", "per_node")
    limit = _count_at(root, "schedule", "max_gpus_per_dnn")
    if slots is None:
        return []
    num_gpus = slots if limit is None else min(slots, limit)
    dnns = root.get("dnns")
    problems = []
    for dnn in dnns.value if dnns is not None and dnns.is_list else []:
        batch_size = _count_at(dnn, "batch_size")
        if batch_size is not None and batch_size < num_gpus:
            node, _ = dnn.deepest(("batch_size",))
            problems.append(node.problem(too_few_samples(batch_size, num_gpus)))
    return problems


def _chronica_without_parts(root: YamlNode) -> list[str]:
    """Reject CHRONICA's choice of samples from parts where data has no parts."""
    samples, rest = root.deepest(("balance", "samples"))
    if rest or samples.value != "chronica" or root.deepest(("data", "access"))[0].value == "partitioned":
        return []
    return [
        samples.problem(
            "got 'chronica', allowed: within-batch or in-order; or set data.access to partitioned, because "
            "chronica chooses each slot's samples from its own part of the data"
        )
    ]


def _monitors_without_validation(root: YamlNode) -> list[str]:
    """Reject what follows a metric of validation samples where there are none: it would never be a number."""
    fraction, rest = root.deepest(("data", "validation_fraction"))
    if rest or isinstance(fraction.value, bool) or fraction.value != 0:
        return []
    own, rest = root.deepest(("data", "validation"))
    if not rest and own.value is not None:
        return []
    dnns = root.get("dnns")
    found: dict[str, tuple[YamlNode, str, dict[str, None]]] = {}  # DNNs may have it from the same defaults
    for dnn in dnns.value if dnns is not None and dnns.is_list else []:
        stop = dnn.get("stop") if dnn.is_mapping else None
        if stop is None or not stop.is_mapping:
            continue
        monitor, following = stop.get("monitor"), _following_the_monitor(root, dnn, stop)
        if monitor is not None and monitor.value is not None:
            if not str(monitor.value).startswith(VALIDATION):
                continue
            node, given = monitor, repr(monitor.value)
        elif following:
            node, given = monitor or stop, "val_ and the first metric by default"
        else:  # the metric of the training samples is shown instead
            continue
        found.setdefault(node.problem(given), (node, given, {}))[2].update(dict.fromkeys(following))
    return [
        node.problem(
            f"{' and '.join(following) or 'max_epochs'} with monitor {given}, but data.validation_fraction "
            "is 0; allowed: monitor: accuracy, loss or another metric of the training samples. If the "
            "dataset has its own validation samples, leave validation_fraction out"
        )
        for node, given, following in found.values()
    ]


def _following_the_monitor(root: YamlNode, dnn: YamlNode, stop: YamlNode) -> list[str]:
    """Return the settings of a DNN that are to follow its `stop.monitor`."""
    following = [key for key in ("patience", "target") if _is_given(stop.get(key))]
    schedule, rest = dnn.deepest(("optimizer", "schedule"))
    name = schedule.get("name") if schedule.is_mapping else schedule
    if not rest and name is not None and name.value == "plateau":
        following.append("optimizer.schedule plateau")
    keep, rest = root.deepest(("checkpoint", "keep"))
    if not rest and keep.value == "best":
        following.append("checkpoint.keep best")
    rule, rest = root.deepest(("prune", "rule"))
    if not rest and rule.value not in (None, NO_RULE) and _is_pruned(root, dnn):
        following.append(f"prune.rule {rule.value}")
    return following


def _is_pruned(root: YamlNode, dnn: YamlNode) -> bool:
    """Whether `prune.dnns` covers a DNN."""
    name, patterns = dnn.get("name"), root.deepest(("prune", "dnns"))
    if name is None or patterns[1] or not patterns[0].is_list:
        return True
    return any(fnmatchcase(str(name.value), str(pattern.value)) for pattern in patterns[0].value)


def _is_given(node: YamlNode | None) -> bool:
    return node is not None and node.value is not None


def _count_at(node: YamlNode, *path: str) -> int | None:
    """The whole number above 0 at `path`, if there is one."""
    found, rest = node.deepest(path)
    value = found.value
    return value if not rest and type(value) is int and value > 0 else None


def _some(names: list[str], limit: int = 8) -> str:
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"

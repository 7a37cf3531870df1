"""Checks across sections, on values that other checks may still reject, so that all errors come together."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from hpcbal.config.checks.names import (
    duplicate_names,
    is_by_output,
    is_own,
    items_of,
    name_nodes,
)
from hpcbal.config.checks.warnings import too_few_samples
from hpcbal.config.schema.ensemble import MOST_BLOCK_SAMPLES, BalanceConfig, DataplaneConfig
from hpcbal.config.schema.jobs import JobsConfig
from hpcbal.config.schema.operations import MIXING, MOST_PIXELS, OF
from hpcbal.config.schema.optimizer import OPTIMIZERS
from hpcbal.config.schema.prune import NO_RULE
from hpcbal.config.schema.run import MOST_BYTES
from hpcbal.config.schema.section import parse_bytes
from hpcbal.config.source.meant import did_you_mean
from hpcbal.config.source.nodes import YamlNode, show
from hpcbal.errors import MOST_PROBLEMS
from hpcbal.events.history import LOSS, VALIDATION

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


_SIZED = ("resize", "random_crop", "center_crop")
_ELEMENTWISE = "normalize"
_FLOAT_BYTES = 4


def ring_problems(root: YamlNode) -> list[str]:
    """Problems with `dataplane.ring_bytes`, in a written-out configuration that may have others, too.

    A sample has at least one byte, or those of one channel after the last operation that fixes its size and
    runs before samples travel, if no operation of the user comes after it. Only the run knows the rest.
    """
    defaults = DataplaneConfig()
    dataplane = root.get("dataplane")
    ring_bytes = _number(dataplane, "ring_bytes", defaults.ring_bytes, MOST_BYTES)
    block_samples = _number(dataplane, "block_samples", defaults.block_samples, MOST_BLOCK_SAMPLES)
    on_device = None if dataplane is None else dataplane.get("on_device")
    leaves = defaults.on_device if on_device is None else on_device.value is not False
    sample_bytes, cause = _least_sample(root.get("preprocessing"), leaves_last=leaves)
    if ring_bytes is None or block_samples is None or 2 * block_samples * sample_bytes <= ring_bytes:
        return []
    needed = 2 * block_samples * sample_bytes
    blocks = f"two blocks of {block_samples} samples of at least {sample_bytes} bytes"
    advice = "raise it, or lower dataplane.block_samples"
    own = None if dataplane is None else dataplane.get("ring_bytes") or dataplane.get("block_samples")
    if own is not None and own.key.endswith("ring_bytes"):
        return [own.problem(f"got {ring_bytes}, allowed: at least {needed}, {blocks}; {advice}")]
    node = cause or own or root
    return [node.problem(f"{blocks} do not fit into dataplane.ring_bytes ({ring_bytes}); {advice}")]


def _number(section: YamlNode | None, name: str, default: int, most: int) -> int | None:
    """The size or count of that name; None if it is wrong, which another check reports."""
    node = None if section is None else section.get(name)
    if node is None:
        return default
    try:
        value = parse_bytes(node.value)
    except ValueError:
        return None
    return value if type(value) is int and 0 < value <= most else None


def _least_sample(operations: YamlNode | None, *, leaves_last: bool) -> tuple[int, YamlNode | None]:
    """(fewest bytes of a sample that travels, the operation that fixes them).

    Args:
        leaves_last: whether elementwise operations at the end run on the device.
    """
    num_pixels, pixel_bytes, cause = 1, 1, None
    items = list(operations.value) if operations is not None and operations.is_list else []
    if any(item.get(OF) is not None for item in items):  # samples of several arrays
        return 1, None
    while leaves_last and items and items[-1].get(_ELEMENTWISE) is not None:
        items.pop()
    for item in items:
        if is_own(item):  # it may change size and type
            num_pixels, pixel_bytes, cause = 1, 1, None
        for name in _SIZED:
            size = item.get(name)
            sides = [_number(size, side, 0, MOST_PIXELS) for side in ("height", "width")]
            if size is not None and sides[0] and sides[1]:
                num_pixels, cause = sides[0] * sides[1], size
        if item.get(_ELEMENTWISE) is not None:
            pixel_bytes = _FLOAT_BYTES
    return num_pixels * pixel_bytes, cause


_MOST_NAMES = 8


def job_problems(root: YamlNode) -> list[str]:
    """Problems between sections of the written-out configuration `root`."""
    return [
        *duplicate_names(root, "jobs", "job"),
        *_unknown_in_groups(root),
        *_speeds_without_times(root),
    ]


def _unknown_in_groups(root: YamlNode) -> list[str]:
    """Reject names in fixed groups that no job has."""
    names = list(dict.fromkeys(node.value for node in name_nodes(root, "jobs")))
    groups, rest = root.deepest(("schedule", "groups"))
    if rest or not groups.is_list or not names:
        return []
    members = [group.get("jobs") for group in groups.value]
    shown = ", ".join(names[:_MOST_NAMES])
    shown += f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return [
        node.problem(
            f"got {show(node.value)}, which no job is{did_you_mean(node.value, names)}, allowed: {shown}"
        )
        for listed in members
        if listed is not None and listed.is_list
        for node in listed.value
        if isinstance(node.value, str) and node.value not in names
    ]


def _speeds_without_times(root: YamlNode) -> list[str]:
    """Reject emulated speeds where it is not known how long a job computes at speed 1."""
    without = [
        job
        for job in items_of(root, "jobs")
        if (time := job.get("seconds_per_sample")) is None or time.value is None
    ]
    if not without:
        return []
    name = without[0].get("name")
    which = "a job" if name is None else f"the job {show(name.plain())}"
    more = f" and {len(without) - 1} more" if len(without) > 1 else ""
    speeds = [speed for machine in items_of(root, "machines") if (speed := machine.get("speed")) is not None]
    return [
        speed.problem(
            f"got {speed.value} without seconds_per_sample of {which}{more}; give each job "
            "seconds_per_sample, the time of a sample at speed 1"
        )
        for speed in speeds
        if isinstance(speed.value, int | float) and speed.value != 1
    ]


def job_warnings(config: JobsConfig, root: YamlNode) -> list[str]:
    """A line for each key that is valid but has no effect.

    Args:
        config: the validated configuration.
        root: the written-out configuration that was validated.
    """
    lines: dict[str, None] = {}
    for job, node in zip(config.jobs, items_of(root, "jobs"), strict=True):
        min_delta, rest = node.deepest(("stop", "min_delta"))
        if not rest and job.stop.min_delta > 0 and job.stop.patience is None:
            lines[min_delta.problem(f"got {job.stop.min_delta}, which has an effect only with patience")] = (
                None
            )
        seconds = node.get("seconds_per_sample")
        if seconds is not None and job.seconds_per_sample is not None and not config.machines:
            given = f"got {job.seconds_per_sample}"
            lines[seconds.problem(f"{given}, which has an effect only with emulated machines")] = None
    return list(lines)


_OF_OBJECTIVE = ("loss", "loss_weights", "metrics", "label_smoothing", "class_weights")
DEFAULT_POLICY = BalanceConfig.model_fields["policy"].default


def cross_problems(root: YamlNode) -> list[str]:
    """Problems between sections of the written-out configuration `root`."""
    return [
        *duplicate_names(root, "dnns", "DNN"),
        *_emulated_rates(root),
        *_emulated_optimizers(root),
        *_emulated_objectives(root),
        *_fixed_shares(root),
        *_shares_in_vain(root),
        *_partitioned(root),
        *_parts_never_used(root),
        *_chronica_without_parts(root),
        *_monitors_without_validation(root),
        *_classes_balanced_twice(root),
        *_patterns_in_vain(root),
        *_augmented_after_normalize(root),
    ]


def _augmented_after_normalize(root: YamlNode) -> list[str]:
    """Reject `augment` where preprocessors normalize by request, so that it would get other samples."""
    on_device, rest = root.deepest(("dataplane", "on_device"))
    steps = root.get("preprocessing")
    last = steps.value[-1] if steps is not None and steps.is_list and steps.value else None
    is_last = last is not None and (last.value == _ELEMENTWISE or last.get(_ELEMENTWISE) is not None)
    augmented = [dnn.get("augment") for dnn in items_of(root, "dnns")]
    if rest or on_device.value is not False or not is_last:
        return []
    if not any(node is not None and node.is_list and node.value for node in augmented):
        return []
    return [
        on_device.problem(
            "got false, allowed with augment of a DNN: true (augment comes before a normalize at the end of "
            "preprocessing, which then runs on the device)"
        )
    ]


def _classes_balanced_twice(root: YamlNode) -> list[str]:
    """Reject weights by the number of a class's samples where all classes are drawn equally often already."""
    sampling, _ = root.deepest(("data", "sampling"))
    if sampling.value != "balanced":
        return []
    problems: dict[str, None] = {}
    for dnn in items_of(root, "dnns"):
        weights = dnn.get("class_weights")
        if weights is not None and weights.value == "balanced":
            problem = weights.problem(
                "got 'balanced' with data.sampling 'balanced', so rare classes would count twice too much, "
                "allowed: null or {class: weight}"
            )
            problems[problem] = None
    return list(problems)


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
    """Reject more weights than slots that a DNN may have; the run checks against those of the allocation."""
    limit, rest = root.deepest(("schedule", "max_slots_per_dnn"))
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
            problems[shares.problem(f"{message} with schedule.max_slots_per_dnn {limit.value}")] = None
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


def _has_names(root: YamlNode) -> bool:
    """Whether the configuration names arrays of samples, or outputs."""
    steps = root.get("preprocessing")
    of = [step.get(OF) for step in (steps.value if steps is not None and steps.is_list else ())]
    losses = [dnn.get("loss") for dnn in items_of(root, "dnns") if dnn.is_mapping]
    return any(node is not None and node.value for node in of) or any(
        node is not None and is_by_output(node) for node in losses
    )


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
    if _has_names(root):
        problems.append(
            access.problem(
                "got 'partitioned' for samples of several named arrays or labels, allowed for these: shared"
            )
        )
    sampling, _ = root.deepest(("data", "sampling"))
    if sampling.value == "balanced":
        problems.append(
            sampling.problem("got 'balanced', allowed: random with data.access 'partitioned'; use 'shared'")
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
    """Reject steps with fewer samples than one node has slots; only the run knows the number of nodes."""
    if root.deepest(("data", "access"))[0].value != "partitioned":
        return []
    slots = _count_at(root, "slots", "per_node")
    limit = _count_at(root, "schedule", "max_slots_per_dnn")
    if slots is None:
        return []
    num_slots = slots if limit is None else min(slots, limit)
    dnns = root.get("dnns")
    problems = []
    for dnn in dnns.value if dnns is not None and dnns.is_list else []:
        batch_size = _count_at(dnn, "batch_size")
        if batch_size is not None and batch_size < num_slots:
            node, _ = dnn.deepest(("batch_size",))
            problems.append(node.problem(too_few_samples(batch_size, num_slots)))
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
        if stop is None or not stop.is_mapping or _is_given(dnn.get("fold")):
            continue
        monitor, following = stop.get("monitor"), _following_the_monitor(root, dnn, stop)
        if monitor is not None and monitor.value is not None:
            is_default = monitor.value == VALIDATION + _first_metric(dnn)  # as in a file from --resolved
            if not str(monitor.value).startswith(VALIDATION) or (is_default and not following):
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


def _first_metric(dnn: YamlNode) -> str:
    """Return the metric that a DNN follows by default."""
    metrics = items_of(dnn, "metrics")
    if not metrics:
        loss = dnn.get("loss")
        return "accuracy" if loss is None or loss.value is None else LOSS
    first = metrics[0]
    parts = [first.get("shown_as"), first.get("name")] if first.is_mapping else [first]
    name = next((str(part.value) for part in parts if part is not None and part.value is not None), LOSS)
    return name.rpartition(":")[2].rpartition(".")[2]  # of a metric of the user's own


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

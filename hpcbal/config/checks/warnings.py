"""Warn of what a run will meet once data and slots are known: batches, walltime, weights, groups, losses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from hpcbal import env
from hpcbal.config.balance import balances_of, resolve_balance
from hpcbal.config.checks.names import items_of
from hpcbal.config.schema.dnn import InitConfig
from hpcbal.config.schema.ensemble import EnsembleConfig
from hpcbal.config.schema.prune import COMMITTEE
from hpcbal.config.schema.run import RunConfig
from hpcbal.config.source.nodes import YamlNode, show
from hpcbal.errors import ConfigError, InputError
from hpcbal.events.history import LOSS, base_name

_MAX_NAMES = 4


def batches_above(config: EnsembleConfig, num_train: int) -> str | None:
    """Name the DNNs whose batch is larger than the training data; None if there are none.

    Args:
        num_train: training samples of a pass, >= 1.
    """
    large = [f"{dnn.name} ({dnn.batch_size})" for dnn in config.dnns if dnn.batch_size > num_train]
    if not large:
        return None
    shown = ", ".join(large[:_MAX_NAMES])
    more = f" and {len(large) - _MAX_NAMES} more" if len(large) > _MAX_NAMES else ""
    return (
        f"batch_size is more than the {num_train} training samples, so a pass is a single step: "
        f"{shown}{more}; use at most {num_train}"
    )


SHORT_S = 60.0
"""Starting ranks, loading TensorFlow and building networks takes seconds to about a minute."""


def walltime_warnings(config: RunConfig, root: YamlNode) -> list[str]:
    """A line in the form of problems if the walltime is short.

    Args:
        config: the validated configuration.
        root: the written-out configuration that was validated.
    """
    if config.walltime is None or config.walltime >= SHORT_S:
        return []
    node, _ = root.deepest(("walltime",))
    return [
        node.problem(
            f"got {config.walltime:g} s, and the last quarter is kept for saving; a start may need longer "
            "than the rest, and then trains next to nothing: give the time limit of the job"
        )
    ]


def initial_warnings(config: EnsembleConfig, root: YamlNode) -> list[str]:
    """A line in the form of problems for each DNN whose `init` names nothing that is there.

    Only a warning: the file may be made before the run starts, and a DNN with a checkpoint needs it no more.

    Args:
        config: the validated configuration.
        root: the written-out configuration that was validated.
    """
    lines = []
    for index, dnn in enumerate(config.dnns):
        missing = None if dnn.init is None else _missing(dnn.init)
        if missing is not None:
            node, _ = root.deepest(("dnns", index, "init"))
            lines.append(node.problem(missing))
    return list(dict.fromkeys(lines))


def _missing(init: InitConfig) -> str | None:
    try:
        path = init.path
    except InputError as error:  # on the machines of the run the variable may be set
        return str(error)
    if init.is_file:
        return None if path.is_file() else f"got {init.source}, but there is no such file"
    if not (path / "config.yaml").is_file():
        return f"got {init.source}, but that is not the output directory of a run"
    assert init.dnn is not None, "checked with the configuration"
    if not any((path / "dnns" / init.dnn).glob("*.h5")):
        return f"got {init.source}:{init.dnn}, but that run has no weights of {init.dnn} yet"
    return None


_PATHS = re.compile(r"(.*_)?(path|file|folder|dir|directory|root)s?")
"""Names of arguments that are paths, whoever wrote the dataset."""
_NO_PATHS = {("datasets:load_dataset", "path")}
"""Callables and arguments that have such a name: Hugging Face's is a kind of files, or a repository, too."""


def data_warnings(root: YamlNode) -> list[str]:
    """A line in the form of problems for each argument of a dataset that leads nowhere on this machine.

    Only a warning: the data may lie on the machines of the run alone, and so may environment variables.

    Args:
        root: the written-out configuration that was validated.
    """
    lines: dict[str, None] = {}
    for owner in (root, *items_of(root, "jobs")):
        data = owner.get("data")
        held_out = [] if data is None else [data.get(name) for name in ("validation", "test")]
        for section in (data, *held_out):
            args = None if section is None else section.get("args")
            called = _dataset_of(section) or _dataset_of(data)
            for name, node in args.value.items() if args is not None and args.is_mapping else ():
                line = None if (called, str(name)) in _NO_PATHS else _leads_nowhere(str(name), node)
                if line is not None:
                    lines[line] = None
    return list(lines)


def _dataset_of(section: YamlNode | None) -> object:
    node = None if section is None else section.get("dataset")
    return None if node is None else node.value


def _leads_nowhere(name: str, argument: YamlNode) -> str | None:
    try:
        value = env.expanded(argument.plain(), argument.key)
    except InputError as error:
        return f"{argument.where}: {error}"
    is_path = isinstance(value, str) and _PATHS.fullmatch(name) is not None
    if not is_path or any(sign in value for sign in "*?[:"):
        return None
    try:
        if Path(value).expanduser().exists():
            return None
    except OSError as error:
        return argument.problem(f"got {show(value)}, which cannot be looked at here ({error.strerror})")
    except RuntimeError:  # of expanduser
        return argument.problem(f"got {show(value)}, but there is no such user on this machine")
    place = "" if Path(value).is_absolute() else f" in {Path.cwd()}"
    return argument.problem(
        f"got {show(value)}, but there is no such file or directory{place} on this machine"
    )


def size_warnings(config: EnsembleConfig, root: YamlNode) -> list[str]:
    """Warn of groups that may be formed, from the file alone; `plan` and `run` know more and warn themselves.

    Args:
        config: the validated configuration.
        root: the written-out configuration that was validated.

    Returns:
        Lines in the form of problems: weights of `fixed` for more slots than a node has, and a limit for
        slots that no group can keep.
    """
    return [*_weights_of_several_nodes(config, root), *_limit_never_kept(config, root)]


def over_limit(
    config: EnsembleConfig, num_slots_by_dnn: Mapping[str, int], num_train: int | None = None
) -> dict[str, str]:
    """Find the DNNs whose even share of a step is above `balance.max_samples_per_slot`, and by how much.

    An even share is always allowed; otherwise no split would be possible.

    Args:
        num_slots_by_dnn: number of slots of the group, >= 1, by name of its DNN.
        num_train: training samples of a pass, the most that a step can have; None: not known.

    Returns: text such as '32 of 64 samples on 2 slots', by name; DNNs with policy `even` are left out.
    """
    limit = config.balance.max_samples_per_slot
    if limit is None:
        return {}
    found = {}
    for dnn in config.dnns:
        num_slots = num_slots_by_dnn.get(dnn.name)
        if num_slots is None or resolve_balance(config.balance, dnn).policy.splits_evenly:
            continue
        num_samples = dnn.batch_size if num_train is None else min(dnn.batch_size, num_train)
        share = -(-num_samples // num_slots)
        if share > limit:
            on = "1 slot" if num_slots == 1 else f"{num_slots} slots"
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
    """Warn of weights of `fixed` for more slots than a node has: a start on too few nodes is refused."""
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
    most = config.slot_limit
    over = {} if most is None else over_limit(config, {dnn.name: most for dnn in config.dnns})
    if not over:
        return []
    node, _ = root.deepest(("balance", "max_samples_per_slot"))
    message = told_limit(config.balance.max_samples_per_slot, over)
    return [node.problem(f"{message} (schedule.max_slots_per_dnn allows no more slots)")]


_KEYS = ("loss", "loss_weights", "label_smoothing", "class_weights")
"""Keys of a DNN on which the value of its loss depends."""
_KEYS_IN_VALIDATION = ("loss", "loss_weights", "label_smoothing")
"""Keys among them that also change the loss of validation samples."""


def compared_losses(config: EnsembleConfig, root: YamlNode) -> list[str]:
    """A line in the form of problems if DNNs are compared by losses that are computed differently.

    Args:
        config: the validated configuration; all DNNs that are compared watch the same metric.
        root: the written-out configuration that was validated.
    """
    dnns = [dnn for dnn in config.dnns if config.prune.covers(dnn.name)]
    if config.prune.rule == COMMITTEE:  # it compares predictions
        dnns = []
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


def searches_in_vain(config: EnsembleConfig, root: YamlNode) -> list[str]:
    """A line in the form of problems for each search whose DNNs are all drawn at random; as above."""
    node, _ = root.deepest(("searches",))
    return [
        node.problem(
            f"sweep {each.name}: got samples: {each.search.samples}, so all are drawn at random and none is "
            f"proposed: give more than startup ({each.search.startup}), or lower startup"
        )
        for each in config.searches
        if each.search.samples <= each.search.startup
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


def check_shares(config: EnsembleConfig, num_slots: int) -> None:
    """Reject weights that no slot could ever use.

    Fewer weights than slots in a group are allowed: the weights repeat from the first.

    Args:
        num_slots: slots of the whole cluster, >= 1.

    Raises:
        ConfigError: if a DNN with policy `fixed` has more weights than there are slots.
    """
    if not (config.balance.shares or any(dnn.shares for dnn in config.dnns)):
        return
    given: dict[str, int] = {}
    for name, balance in balances_of(config).items():
        if balance.policy.takes_shares:
            key = f"dnns.{name}.shares" if balance.shares_are_own else "balance.shares"
            given[key] = len(balance.shares)
    problems = [
        f"{key}: got {num_weights} weights, allowed: at most {num_slots}, one for each slot; "
        "remove some weights, or ask for more slots"
        for key, num_weights in given.items()
        if num_weights > num_slots
    ]
    if problems:
        raise ConfigError(problems)


def check_parts(config: EnsembleConfig, num_slots: int, num_train: int | None = None) -> None:
    """Reject partitioned data, or steps of it, that would leave a slot without samples.

    Args:
        num_slots: slots of the whole cluster, >= 1.
        num_train: training samples of the dataset, >= 1; None: not known.

    Raises:
        ConfigError: if the DNN may get more slots than a step, or the dataset, has training samples.
    """
    if config.data.access != "partitioned":
        return
    most = min(num_slots, config.slot_limit or num_slots)
    problems = [
        f"dnns.{dnn.name}.batch_size: {too_few_samples(dnn.batch_size, most)}"
        for dnn in config.dnns
        if dnn.batch_size < most
    ]
    if num_train is not None and num_train < most:
        problems.append(
            f"data.dataset: got {num_train} training samples, allowed: at least {most} with data.access "
            "'partitioned', one for every slot that the DNN may have; add samples, use fewer slots, or set "
            f"schedule.max_slots_per_dnn to {num_train}"
        )
    if problems:
        raise ConfigError(problems)


def too_few_samples(batch_size: int, num_slots: int) -> str:
    """Error text for steps of `batch_size` samples, when partitioned data is on `num_slots` slots."""
    return (
        f"got {batch_size}, allowed: at least {num_slots} with data.access 'partitioned': every slot that "
        "the DNN may have needs a sample in each step, else some data is never used; or set "
        f"schedule.max_slots_per_dnn to {batch_size}"
    )

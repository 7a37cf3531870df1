"""Warn of keys in the file that have no effect because of other keys.

They are not errors: a file in which one key is changed to compare runs stays valid. A key at its default
never causes a warning, so a configuration with every key written out is quiet. Keys of `schedule` are not
checked: files are written to be run or simulated under several paradigms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from hpcbal.config.schema.dnn import DnnConfig
from hpcbal.config.schema.ensemble import EnsembleConfig
from hpcbal.config.schema.optimizer import ScheduleOfRateConfig
from hpcbal.config.schema.prune import ASHA, COMMITTEE, MEDIAN, NO_RULE
from hpcbal.config.source.nodes import YamlNode, show

if TYPE_CHECKING:  # loads NumPy, which most configurations do not need to be checked
    from hpcbal.config.balance import DnnBalance, Policy


@dataclass(frozen=True, slots=True)
class _Rule:
    """A key of the run, when it has an effect, and what that takes (a text, or a function that makes it)."""

    key: str
    acts: Callable[[EnsembleConfig], bool]
    needs: str | Callable[[], str]


@dataclass(frozen=True, slots=True)
class _DnnRule:
    """A key of a DNN, when it has an effect, and what that takes."""

    key: str
    acts: Callable[[EnsembleConfig, DnnConfig], bool]
    needs: str | Callable[[], str]


def _is_partitioned(config: EnsembleConfig) -> bool:
    return config.data.access == "partitioned"


def _deals_batches(config: EnsembleConfig) -> bool:
    return config.data.access == "shared" and config.balance.samples == "within-batch"


def _chooses_by_size(config: EnsembleConfig) -> bool:
    return not _is_partitioned(config) or config.balance.samples == "chronica"


def _ends_elementwise(config: EnsembleConfig) -> bool:
    steps = config.preprocessing
    return any(step.name == "normalize" and (step.of or step is steps[-1]) for step in steps)


def _may_prune(config: EnsembleConfig) -> bool:
    return any(dnn.stop.max_epochs > _first_judged(config) for dnn in _compared(config))


def _has_peers(config: EnsembleConfig) -> bool:
    num_arriving = sum(dnn.stop.max_epochs >= _first_judged(config) for dnn in _compared(config))
    num_peers = config.prune.min_peers if config.prune.rule == MEDIAN else 1
    return num_arriving > num_peers or not _may_prune(config)  # in the latter case, one warning will do


def _with_rule(*rules: str) -> Callable[[EnsembleConfig], bool]:
    return lambda config: config.prune.rule in rules


def _first_judged(config: EnsembleConfig) -> int:
    """The first epoch after which a DNN can be pruned."""
    return config.prune.warmup_epochs if config.prune.rule == MEDIAN else config.prune.min_epochs


def _compared(config: EnsembleConfig) -> list[DnnConfig]:
    return [dnn for dnn in config.dnns if config.prune.covers(dnn.name)]


def _with_paradigm(*paradigms: str) -> Callable[[EnsembleConfig], bool]:
    """Whether the schedule has one of these paradigms."""
    return lambda config: config.schedule.paradigm in paradigms


def _may_share_steps(config: EnsembleConfig) -> bool:
    """Whether a DNN may have several slots."""
    return config.schedule.paradigm != "independent"


def _is_emulated(config: EnsembleConfig) -> bool:
    return config.backend.is_emulated


def _some(holds: Callable[[DnnBalance], bool]) -> Callable[[EnsembleConfig], bool]:
    """Whether it holds of how the steps of any DNN are split."""

    def acts(config: EnsembleConfig) -> bool:
        from hpcbal.config.balance import balances_of

        return any(map(holds, balances_of(config).values()))

    return acts


def _with_policy(declares: Callable[[Policy], bool], rest: str = "") -> Callable[[], str]:
    """Return a function whose text is `with policy:` and the policies that declare something."""
    return lambda: f"with policy: {_names_where(declares)}{rest}"


def _names_where(declares: Callable[[Policy], bool]) -> str:
    from hpcbal.config.balance import policies_where

    *others, last = policies_where(declares)
    return f"{', '.join(others)} or {last}" if others else last


def _with_fitted() -> str:
    return f"{_PREDICTING()} and predictor: narx"


def _takes_shares(config: EnsembleConfig, dnn: DnnConfig) -> bool:
    from hpcbal.config.balance import resolve_balance

    return resolve_balance(config.balance, dnn).policy.takes_shares


_PARTITIONED = "with data.access: partitioned"
_SHARED = "with data.access: shared"
_SEVERAL_SLOTS = "with a schedule.paradigm other than independent, where each DNN has one slot"


def _rate_of(dnn: DnnConfig) -> ScheduleOfRateConfig:
    assert dnn.optimizer.schedule is not None  # one of its keys is in the file
    return dnn.optimizer.schedule


def _may_fall(dnn: DnnConfig) -> bool:
    """Whether a plateau can lower the rate before the DNN stops."""
    rate, stop = _rate_of(dnn), dnn.stop
    stops_first = (
        stop.patience is not None and stop.patience <= rate.patience and stop.min_delta >= rate.min_delta
    )
    return not stops_first and rate.patience < stop.max_epochs


_EMULATED = "with backend.name: emulated"
_TRAINED = "with backend.name: auto, tensorflow or torch"
_PREDICTING = _with_policy(lambda policy: policy.takes_predictor)

_RULES = (
    _Rule(
        "schedule.delta", _with_paradigm("auto", "global", "local"), "with paradigm: auto, global or local"
    ),
    _Rule("schedule.alpha", _with_paradigm("auto", "global"), "with paradigm: auto or global"),
    _Rule(
        "schedule.max_slots_per_dnn",
        _with_paradigm("auto", "global", "local", "elastic"),
        "with paradigm: auto, global, local or elastic",
    ),
    _Rule(
        "slots.per_gpu",
        lambda config: config.slots.device != "cpu" and not _is_emulated(config),
        f"with slots.device: auto or gpu, and {_TRAINED.removeprefix('with ')}",
    ),
    _Rule("data.partition", _is_partitioned, _PARTITIONED),
    _Rule(
        "data.max_traversal_gap",
        lambda config: _is_partitioned(config) and config.balance.samples != "chronica",
        f"{_PARTITIONED}, unless balance.samples is chronica",
    ),
    _Rule("data.lookahead", lambda config: not _is_partitioned(config), _SHARED),
    _Rule("balance.samples", _chooses_by_size, _SHARED),
    _Rule("balance.cost", _chooses_by_size, f"{_SHARED}, or with samples: chronica"),
    _Rule("balance.gradient_weights", _chooses_by_size, f"{_SHARED}, or with samples: chronica"),
    _Rule("balance.max_work_per_slot", _deals_batches, f"{_SHARED} and samples: within-batch"),
    _Rule("dataplane.on_device", _ends_elementwise, "with normalize at the end of preprocessing"),
    _Rule(
        "dataplane.ring_bytes",
        _with_paradigm("auto", "global", "local", "homogeneous"),
        "with paradigm: auto, global, local or homogeneous",
    ),
    _Rule("dataplane.cache_bytes", lambda config: not _is_partitioned(config), _SHARED),
    _Rule("backend.rates", _is_emulated, _EMULATED),
    _Rule("backend.workers", _is_emulated, _EMULATED),
    _Rule(
        "balance.policy",
        lambda config: any(dnn.balance is None for dnn in config.dnns),
        "on DNNs without their own balance",
    ),
    _Rule("balance.policy", _may_share_steps, _SEVERAL_SLOTS),
    _Rule("balance.samples", _may_share_steps, _SEVERAL_SLOTS),
    _Rule(
        "balance.shares",
        _some(lambda balance: balance.policy.takes_shares and not balance.shares_are_own),
        _with_policy(lambda policy: policy.takes_shares, ", on DNNs without their own shares"),
    ),
    _Rule("balance.predictor", _some(lambda balance: balance.policy.takes_predictor), _PREDICTING),
    _Rule("balance.first_fit", _some(lambda balance: balance.fits_speeds), _with_fitted),
    _Rule("balance.refit_every", _some(lambda balance: balance.fits_speeds), _with_fitted),
    _Rule(
        "balance.max_samples_per_slot",
        _some(lambda balance: not balance.policy.splits_evenly),
        lambda: (
            f"with a policy other than {_names_where(lambda policy: policy.splits_evenly)}, or on samples "
            "that differ in size"
        ),
    ),
    _Rule(
        "balance.regroup",
        _some(lambda balance: balance.policy.offers_removal),
        _with_policy(lambda policy: policy.offers_removal, ", or on slots that an earlier start left out"),
    ),
    _Rule("prune.rule", _may_prune, "on DNNs that train beyond prune.min_epochs or prune.warmup_epochs"),
    _Rule("prune.rule", _has_peers, "on two or more DNNs, and with median on more than prune.min_peers"),
    _Rule("prune.dnns", lambda config: config.prune.rule != NO_RULE, "with a rule"),
    _Rule("prune.reduction", _with_rule(ASHA), "with rule: asha"),
    _Rule("prune.min_epochs", _with_rule(ASHA, COMMITTEE), "with rule: asha or committee"),
    _Rule("prune.warmup_epochs", _with_rule(MEDIAN), "with rule: median"),
    _Rule("prune.min_peers", _with_rule(MEDIAN), "with rule: median"),
    _Rule(
        "prune.samples",
        lambda config: bool(config.combined[0]),
        "with rule: committee, or search.for: committee",
    ),
    _Rule("prune.tolerance", _with_rule(COMMITTEE), "with rule: committee"),
    _Rule("timeline.steps_per_pass", lambda config: config.timeline.max_bytes > 0, "with max_bytes above 0"),
)
_DNN_RULES = (
    _DnnRule(
        "shares",
        _takes_shares,
        lambda: f"with balance: {_names_where(lambda policy: policy.takes_shares)}",
    ),
    _DnnRule("accumulate", lambda config, dnn: not _is_emulated(config), _TRAINED),
    _DnnRule(
        "compile",
        lambda config, dnn: not _is_emulated(config),
        "with backend.name: auto, tensorflow or torch",
    ),
    _DnnRule(
        "optimizer.no_weight_decay",
        lambda config, dnn: not _is_emulated(config) and dnn.optimizer.decays,
        _TRAINED,
    ),
    _DnnRule(
        "optimizer.schedule.patience",
        lambda config, dnn: _rate_of(dnn).name != "plateau" or _may_fall(dnn),
        "if it is less than stop.max_epochs, and than stop.patience: the DNN stops before the rate falls",
    ),
    _DnnRule(
        "optimizer.schedule.warmup",
        lambda config, dnn: _rate_of(dnn).unit == "steps" or _rate_of(dnn).warmup < dnn.stop.max_epochs,
        "in full, if it is less than stop.max_epochs: training ends while the rate still grows",
    ),
    _DnnRule(
        "optimizer.schedule.at",
        lambda config, dnn: _rate_of(dnn).unit == "steps" or _rate_of(dnn).at[-1] < dnn.stop.max_epochs,
        "in full, if all its epochs are before stop.max_epochs",
    ),
    _DnnRule(
        "stop.patience",
        lambda config, dnn: dnn.stop.patience is None or dnn.stop.patience < dnn.stop.max_epochs,
        "if it is less than max_epochs",
    ),
    _DnnRule("stop.min_delta", lambda config, dnn: dnn.stop.patience is not None, "with patience"),
)


def keys_without_effect(config: EnsembleConfig, root: YamlNode) -> list[str]:
    """One line for each key that is written, is not at its default, and has no effect.

    Args:
        config: the validated configuration.
        root: the written-out configuration that was validated.

    Returns:
        Lines in the form of problems: place, key, what was given, and what an effect would take. A key that
        several DNNs inherit is listed only if it has no effect in any of them.
    """
    lines = []
    for rule in _RULES:
        node, rest = root.deepest(rule.key.split("."))
        if not rest and _is_changed(config, rule.key) and not rule.acts(config):
            lines.append(_line(node, rule.needs))
    return lines + [line for rule in _DNN_RULES for line in _lines_of_dnns(rule, config, root)]


def _lines_of_dnns(rule: _DnnRule, config: EnsembleConfig, root: YamlNode) -> list[str]:
    acts: dict[str, bool] = {}
    for index, dnn in enumerate(config.dnns):
        node, rest = root.deepest(("dnns", index, *rule.key.split(".")))
        if not rest and _is_changed(dnn, rule.key):
            line = _line(node, rule.needs)
            acts[line] = acts.get(line, False) or rule.acts(config, dnn)
    return [line for line, does_act in acts.items() if not does_act]


def _line(node: YamlNode, needs: str | Callable[[], str]) -> str:
    text = needs if isinstance(needs, str) else needs()
    return node.problem(f"got {show(node.plain())}, which has an effect only {text}")


def _is_changed(section: BaseModel, key: str) -> bool:
    """Whether the value of a key, given by its dotted path, differs from its default."""
    *way, name = key.split(".")
    owner: Any = section
    for part in way:
        owner = getattr(owner, part)
    default = type(owner).model_fields[name].get_default(call_default_factory=True)
    return bool(getattr(owner, name) != default)

"""Warn of keys that a user wrote and that change nothing, because of what other keys say.

They are no errors: a file in which one key is changed to compare runs stays valid. A key that has its default
is never warned of, so a configuration with every key written out is quiet. Keys of `schedule` are not looked
at: files are written to be run or simulated under several paradigms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from hpcbal.config.messages import show
from hpcbal.config.schema.dnn import DnnConfig
from hpcbal.config.schema.ensemble import EnsembleConfig
from hpcbal.config.source.nodes import YamlNode


@dataclass(frozen=True, slots=True)
class _Rule:
    """A key of the run, when it acts, and what it takes for that (a text, or what makes the text)."""

    key: str
    acts: Callable[[EnsembleConfig], bool]
    needs: str | Callable[[], str]


@dataclass(frozen=True, slots=True)
class _DnnRule:
    """A key of a DNN, when it acts, and what it takes for that."""

    key: str
    acts: Callable[[EnsembleConfig, DnnConfig], bool]
    needs: str


def _is_partitioned(config: EnsembleConfig) -> bool:
    return config.data.access == "partitioned"


def _is_emulated(config: EnsembleConfig) -> bool:
    return config.backend.name == "emulated"


def _policy(config: EnsembleConfig, dnn: DnnConfig) -> str:
    return dnn.balance or config.balance.policy


def _policies(config: EnsembleConfig) -> set[str]:
    return {_policy(config, dnn) for dnn in config.dnns}


def _predicts(config: EnsembleConfig) -> bool:
    return "lb-bsp-cpu" in _policies(config)


def _fits(config: EnsembleConfig) -> bool:
    from hpcbal.policies.batching.speed import FITTED_BY

    return _predicts(config) and config.balance.predictor in FITTED_BY


def _with_fitted() -> str:
    from hpcbal.policies.batching.speed import FITTED_BY

    return f"with policy: lb-bsp-cpu and one of {', '.join(sorted(FITTED_BY))} as predictor"


_PARTITIONED = "with data.access: partitioned"
_EMULATED = "with backend.name: emulated"

_RULES = (
    _Rule("data.partition", _is_partitioned, _PARTITIONED),
    _Rule("data.max_traversal_gap", _is_partitioned, _PARTITIONED),
    _Rule("backend.rates", _is_emulated, _EMULATED),
    _Rule("backend.workers", _is_emulated, _EMULATED),
    _Rule(
        "balance.policy",
        lambda config: any(dnn.balance is None for dnn in config.dnns),
        "on DNNs without a balance of their own",
    ),
    _Rule(
        "balance.shares",
        lambda config: any(_policy(config, dnn) == "fixed" and not dnn.shares for dnn in config.dnns),
        "with policy: fixed, on DNNs without shares of their own",
    ),
    _Rule("balance.predictor", _predicts, "with policy: lb-bsp-cpu"),
    _Rule("balance.first_fit", _fits, _with_fitted),
    _Rule("balance.refit_every", _fits, _with_fitted),
    _Rule(
        "balance.max_samples_per_gpu",
        lambda config: _policies(config) != {"even"},
        "with a policy other than even",
    ),
    _Rule(
        "balance.regroup",
        lambda config: not _policies(config).isdisjoint({"fitted", "lb-bsp-gpu"}),
        "with policy: fitted or lb-bsp-gpu, or on GPUs that an earlier start has left out",
    ),
    _Rule("timeline.steps_per_pass", lambda config: config.timeline.max_bytes > 0, "with max_bytes above 0"),
)
_DNN_RULES = (
    _DnnRule("shares", lambda config, dnn: _policy(config, dnn) == "fixed", "with balance: fixed"),
    _DnnRule("stop.min_delta", lambda config, dnn: dnn.stop.patience is not None, "with patience"),
)


def keys_without_effect(config: EnsembleConfig, root: YamlNode) -> list[str]:
    """One line for each key that is written, is not at its default, and has no effect.

    Args:
        config: as validated.
        root: the written-out configuration that it was validated from.

    Returns:
        Lines as those of problems: where, key, what was given, and what it takes to have an effect. A key
        that several DNNs inherit is there only if it acts in none of them.
    """
    lines = []
    for rule in _RULES:
        node, rest = root.deepest(rule.key.split("."))
        if not rest and _is_changed(config, rule.key) and not rule.acts(config):
            lines.append(_line(node, rule.needs if isinstance(rule.needs, str) else rule.needs()))
    return lines + [line for rule in _DNN_RULES for line in _lines_of_dnns(rule, config, root)]


def _lines_of_dnns(rule: _DnnRule, config: EnsembleConfig, root: YamlNode) -> list[str]:
    acts: dict[str, bool] = {}
    for index, dnn in enumerate(config.dnns):
        node, rest = root.deepest(("dnns", index, *rule.key.split(".")))
        if not rest and _is_changed(dnn, rule.key):
            line = _line(node, rule.needs)
            acts[line] = acts.get(line, False) or rule.acts(config, dnn)
    return [line for line, does_act in acts.items() if not does_act]


def _line(node: YamlNode, needs: str) -> str:
    return node.problem(f"got {show(node.plain())}, which has an effect only {needs}")


def _is_changed(section: BaseModel, key: str) -> bool:
    """Whether a key, given by its dotted path, has another value than its default."""
    *way, name = key.split(".")
    owner: Any = section
    for part in way:
        owner = getattr(owner, part)
    default = type(owner).model_fields[name].get_default(call_default_factory=True)
    return bool(getattr(owner, name) != default)

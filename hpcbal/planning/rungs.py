"""The rungs at which a pruning rule will decide, before anything is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpcbal.config import EnsembleConfig
from hpcbal.policies.pruning import Asha


@dataclass(frozen=True, slots=True)
class Rung:
    """A rung of `asha`, as if all DNNs trained side by side.

    Attributes:
        epoch: DNNs are compared when they have trained so many epochs.
        num_dnns: DNNs that reach it.
        num_promoted: DNNs that train on; more if better ones arrive late.
    """

    epoch: int
    num_dnns: int
    num_promoted: int


def planned_rungs(config: EnsembleConfig) -> list[Rung]:
    """The rungs of the configuration; none without the rule `asha`."""
    rule = config.prune.prune_rule()
    if not isinstance(rule, Asha):
        return []
    ends = [dnn.stop.max_epochs for dnn in config.dnns if config.prune.covers(dnn.name)]
    rungs: list[Rung] = []
    promoted = len(ends)
    for epoch in rule.rungs(max(ends, default=0)):
        arriving = min(promoted, sum(end >= epoch for end in ends))
        promoted = max(1, arriving // rule.reduction)
        rungs.append(Rung(epoch, arriving, promoted))
    return rungs


def prune_lines(config: EnsembleConfig) -> list[str]:
    """The rule and its rungs, for people; nothing without a rule."""
    prune = config.prune
    num_dnns = sum(prune.covers(dnn.name) for dnn in config.dnns)
    if not num_dnns:
        return []
    if prune.rule == "median":
        first_epoch = prune.warmup_epochs
        return [f"prune median: {num_dnns} DNNs are compared after every epoch from epoch {first_epoch} on"]
    rungs = planned_rungs(config)
    if not rungs:
        return [f"prune asha: all {num_dnns} DNNs train on, because there is no rung before their last epoch"]
    words = [" DNNs train on", *[""] * len(rungs)]
    steps = [
        f"{rung.num_promoted} of {rung.num_dnns}{word} after epoch {rung.epoch}"
        for rung, word in zip(rungs, words, strict=False)
    ]
    return [f"prune asha: {', '.join(steps)}"]


def prune_to_dict(config: EnsembleConfig) -> dict[str, Any] | None:
    """The rule and its rungs as JSON; None without a rule."""
    if config.prune.prune_rule() is None:
        return None
    rungs = [
        {"epoch": rung.epoch, "num_dnns": rung.num_dnns, "num_promoted": rung.num_promoted}
        for rung in planned_rungs(config)
    ]
    return {"rule": config.prune.rule, "rungs": rungs}

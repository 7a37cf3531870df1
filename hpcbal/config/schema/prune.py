"""The section `prune`: which DNNs of a sweep stop early."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, Strict, ValidationInfo

from hpcbal.config.schema.section import COUNT_ALLOWED, Section, key, wrong

if TYPE_CHECKING:
    from hpcbal.config.schema.dnn import DnnConfig
    from hpcbal.policies.pruning import PruneRule

NO_RULE = "none"
_NUM_NAMED = 3


class PruneConfig(Section):
    """Which DNNs stop early because others are better, by their `stop.monitor`."""

    rule: Literal["none", "asha", "median"] = key(
        NO_RULE,
        "asha: of the DNNs that reach a rung, the best 1/reduction train to the next one ([ASHA] Alg. 2); "
        "median: a DNN stops if it is below the median of the others' averages ([VIZIER]).",
        "none, asha, median",
    )
    dnns: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Strict(False)] = key(
        ("*",),
        "Names of the DNNs that are compared with each other and may stop; * and ? stand for any characters.",
        "a list of names or patterns such as 'resnet-*'",
        min_length=1,
    )
    reduction: int = key(
        3,
        "For asha: 1 of this many DNNs is promoted, and each rung has this many times the epochs.",
        "a whole number, 2 or more",
        ge=2,
    )
    min_epochs: int = key(1, "For asha: epochs up to the first rung.", COUNT_ALLOWED, ge=1)
    warmup_epochs: int = key(
        1, "For median: no DNN stops before it has trained this many epochs.", COUNT_ALLOWED, ge=1
    )
    min_peers: int = key(
        5, "For median: no DNN stops while fewer others have trained as many epochs.", COUNT_ALLOWED, ge=1
    )

    def covers(self, name: str) -> bool:
        """Whether the DNN of this name may stop early."""
        return self.rule != NO_RULE and any(fnmatchcase(name, pattern) for pattern in self.dnns)

    def prune_rule(self) -> PruneRule | None:
        """The rule as the state machine uses it; None: no DNN stops early."""
        from hpcbal.policies.pruning import Asha, Median

        if self.rule == "asha":
            return Asha(self.reduction, self.min_epochs)
        if self.rule == "median":
            return Median(self.warmup_epochs, self.min_peers)
        return None


def _compares_one_metric(prune: PruneConfig, info: ValidationInfo) -> PruneConfig:
    """Reject a rule that would compare, say, losses with accuracies."""
    dnns: tuple[DnnConfig, ...] = info.data.get("dnns", ())
    names: dict[tuple[str, str], list[str]] = {}
    for dnn in dnns:
        if prune.covers(dnn.name):
            names.setdefault((dnn.stop.watched, dnn.stop.resolved_mode), []).append(dnn.name)
    if len(names) > 1:
        given = "; ".join(f"{metric} ({mode}): {_some(its)}" for (metric, mode), its in names.items())
        raise wrong(
            "dnns",
            f"the DNNs are compared with each other, but do not watch the same metric ({given}), allowed: "
            "DNNs with the same stop.monitor; give all of them the same, or list here those to be compared",
        )
    return prune


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NUM_NAMED} more" if len(names) > _NUM_NAMED else ""
    return ", ".join(names[:_NUM_NAMED]) + more


PruneOfDnns = Annotated[PruneConfig, AfterValidator(_compares_one_metric)]
"""The section, beside the DNNs that it compares."""

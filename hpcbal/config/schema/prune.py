"""The section `prune`: which DNNs of a sweep stop early."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, Strict

from hpcbal.config.schema.section import COUNT_ALLOWED, Section, key

if TYPE_CHECKING:
    from hpcbal.policies.pruning import PruneRule

NO_RULE = "none"


class PruneConfig(Section):
    """Which DNNs stop early because others are better, by their `stop.monitor`."""

    rule: Literal["none", "asha", "median"] = key(
        NO_RULE,
        "asha: of the DNNs that reach a rung, the best 1/reduction train to the next one ([ASHA] Alg. 2); "
        "median: a DNN stops if it is below the median of the others' averages ([VIZIER] Sec. 3.2.2).",
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

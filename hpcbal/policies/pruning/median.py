"""The median rule: a DNN that is worse than the average course of half of the others stops."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from hpcbal.errors import InputError
from hpcbal.policies.pruning.task import Candidate, Ruling


@dataclass(frozen=True, slots=True)
class Median:
    """Prune a DNN whose best value is worse than the median of the running averages of its peers.

    Its peers are the other DNNs that have completed as many epochs and have not failed; the running average
    of a peer is the mean of its values over these epochs.

    Args:
        warmup_epochs: no DNN is pruned before it has completed this many epochs, >= 1.
        min_peers: nor while it has fewer peers than this, >= 1.

    Raises:
        InputError: if an argument is out of range.

    Source: [VIZIER], the median stopping rule. Deviation: peers need not be completed, because DNNs
        that train side by side would all be past the epoch in question by then.
    """

    warmup_epochs: int = 1
    min_peers: int = 5

    def __post_init__(self) -> None:
        for name, value in (("warmup_epochs", self.warmup_epochs), ("min_peers", self.min_peers)):
            if value < 1:
                raise InputError(f"prune.{name}: got {value}, allowed: a whole number, 1 or more")

    def rule(self, candidates: Sequence[Candidate]) -> Ruling:
        """See `PruneRule.rule`."""
        pruned: dict[str, str] = {}
        means_by_epoch: dict[int, dict[str, float]] = {}
        for candidate in candidates:
            epochs = candidate.epochs
            is_between = candidate.is_live and not candidate.is_begun and epochs < candidate.max_epochs
            if not is_between or epochs < self.warmup_epochs:
                continue
            if epochs not in means_by_epoch:
                means_by_epoch[epochs] = {
                    c.name: _mean(c.values[:epochs])
                    for c in candidates
                    if c.epochs >= epochs and not c.has_failed
                }
            means = [mean for name, mean in means_by_epoch[epochs].items() if name != candidate.name]
            if len(means) >= self.min_peers and candidate.best(epochs) < statistics.median(means):
                pruned[candidate.name] = f"below the median of {len(means)} others after epoch {epochs}"
        return Ruling({}, pruned)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else -math.inf

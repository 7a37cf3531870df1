"""Which DNNs of an ensemble train on, wait for others, or stop early."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hpcbal.errors import InputError


@dataclass(frozen=True, slots=True)
class Candidate:
    """One DNN as a pruning rule sees it.

    Attributes:
        name: unique name.
        values: its monitored metric after each completed epoch; more is better, -inf where it is not a
            number.
        max_epochs: epochs after which it stops at the latest.
        is_live: whether it may train on: it is not done, pruned or failed.
        has_failed: whether it cannot continue.
        is_begun: whether it has begun the epoch after those in `values`, so that it cannot be stopped now.
        evidence: its predictions after each completed epoch, as `hpcbal.ensembling.encoded` writes them; None
            where they are not known. Empty for rules that need none.
    """

    name: str
    values: Sequence[float]
    max_epochs: int
    is_live: bool = True
    has_failed: bool = False
    is_begun: bool = False
    evidence: Sequence[str | None] = ()

    @property
    def epochs(self) -> int:
        return len(self.values)

    def best(self, epochs: int) -> float:
        """The best value of the first `epochs` epochs, >= 1."""
        return max(self.values[:epochs])


@dataclass(frozen=True, slots=True)
class Ruling:
    """A rule's decision about DNNs that are between two epochs; those not named may train on.

    Attributes:
        paused: DNNs that wait until results of others decide about them, with a reason for people.
        pruned: DNNs that never train on, with a reason for people.
    """

    paused: Mapping[str, str] = field(default_factory=dict)
    pruned: Mapping[str, str] = field(default_factory=dict)


class PruneRule(Protocol):
    """A rule that stops DNNs early.

    Attributes:
        needs_evidence: whether it compares predictions.
    """

    @property
    def needs_evidence(self) -> bool: ...

    def rule(self, candidates: Sequence[Candidate]) -> Ruling:
        """Rule on all live DNNs that have not begun their next epoch.

        The answer depends on the arguments alone. Where two DNNs are equally good, the first one wins. If no
        DNN trains, at least one of those that are live is neither paused nor pruned, or all are pruned.
        """


@dataclass(frozen=True, slots=True)
class Asha:
    """ASHA with promotion: a DNN waits at a rung until it is among the best of those that have reached it.

    Rung k is the end of epoch `min_epochs * reduction**k`. Of n DNNs that have reached a rung, the best
    floor(n / reduction) are promotable: they may train to the next rung. The others are paused, because n
    grows. They are pruned once they could not be promotable whatever the DNNs that are still to come do.

    A DNN counts with its best value up to the rung, because that is what it would deliver. It keeps its place
    in the rungs that it has reached after it has converged or was pruned; if it fails, it ranks last.

    Args:
        reduction: eta, the factor between two rungs and the share that is promoted, >= 2.
        min_epochs: the first rung, >= 1.

    Raises:
        InputError: if an argument is out of range.

    Source: [ASHA] Alg. 2 (get_job). Deviations: configurations are given, not drawn without end, so a rung
        that no further DNN can reach promotes at least one, and what can no longer be promoted is pruned. The
        value at a rung is the best one so far, not the last one. The schedule decides which of the promotable
        DNNs trains next, and when.
    """

    reduction: int = 3
    min_epochs: int = 1

    @property
    def needs_evidence(self) -> bool:
        return False

    def __post_init__(self) -> None:
        if self.reduction < 2:
            raise InputError(f"prune.reduction: got {self.reduction}, allowed: a whole number, 2 or more")
        if self.min_epochs < 1:
            raise InputError(f"prune.min_epochs: got {self.min_epochs}, allowed: a whole number, 1 or more")

    def rungs(self, max_epochs: int) -> tuple[int, ...]:
        """Epochs at whose end it is decided about a DNN that trains for `max_epochs` at most."""
        result = []
        rung = self.min_epochs
        while rung < max_epochs:
            result.append(rung)
            rung *= self.reduction
        return tuple(result)

    def rule(self, candidates: Sequence[Candidate]) -> Ruling:
        """See `PruneRule.rule`."""
        paused: dict[str, str] = {}
        pruned: dict[str, str] = {}
        most_epochs = max((c.max_epochs for c in candidates), default=0)
        for rung in self.rungs(most_epochs):
            arrived = [c for c in candidates if c.epochs >= rung]
            if not any(_stands_at(c, rung) for c in arrived):
                continue
            # Below this rung, a DNN that was pruned in this ruling will not come either.
            num_coming = sum(
                c.is_live and c.epochs < rung <= c.max_epochs and c.name not in pruned for c in candidates
            )
            num_best = len(arrived) // self.reduction
            num_best_ever = max(1, (len(arrived) + num_coming) // self.reduction)
            if not num_coming:
                num_best = num_best_ever
            ranked = sorted(arrived, key=lambda c: (c.has_failed, -c.best(rung)))  # stable: ties by order
            for rank, candidate in enumerate(ranked[num_best:], num_best + 1):
                if not _stands_at(candidate, rung):
                    continue
                place = f"number {rank} of {len(arrived)} after epoch {rung}"
                if rank > num_best_ever:
                    pruned[candidate.name] = f"{place}, {num_best_ever} promoted"
                else:
                    paused[candidate.name] = f"{place}, {num_coming} to come"
        return Ruling(paused, pruned)


def _stands_at(candidate: Candidate, rung: int) -> bool:
    """Whether it has reached the rung, and would train on from there."""
    return (
        candidate.is_live
        and not candidate.is_begun
        and candidate.epochs == rung
        and rung < candidate.max_epochs
    )


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

    @property
    def needs_evidence(self) -> bool:
        return False

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

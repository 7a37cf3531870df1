"""Asynchronous successive halving: the best of those that reach a rung are promoted to the next one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcbal.errors import InputError
from hpcbal.policies.pruning.task import Candidate, Ruling


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

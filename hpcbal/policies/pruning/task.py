"""What a pruning rule decides from, and what it decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


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
    """

    name: str
    values: Sequence[float]
    max_epochs: int
    is_live: bool = True
    has_failed: bool = False
    is_begun: bool = False

    @property
    def epochs(self) -> int:
        return len(self.values)

    def best(self, epochs: int) -> float:
        """The best value of the first `epochs` epochs, >= 1."""
        return max(self.values[:epochs])


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a rule decides about DNNs that are between two epochs; those not named may train on.

    Attributes:
        paused: DNNs that wait until results of others decide about them, with a reason for people.
        pruned: DNNs that never train on, with a reason for people.
    """

    paused: Mapping[str, str] = field(default_factory=dict)
    pruned: Mapping[str, str] = field(default_factory=dict)


class PruneRule(Protocol):
    """A rule that stops DNNs early."""

    def rule(self, candidates: Sequence[Candidate]) -> Ruling:
        """Rule on all live DNNs that have not begun their next epoch.

        The answer depends on the arguments alone. Where two DNNs are equally good, the first one wins. If no
        DNN trains, at least one of those that are live is neither paused nor pruned, or all are pruned.
        """

"""How evenly the work of samples of unequal size is spread over the slots of a group."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from hpcbal.telemetry.ledger import RankFacts


@dataclass(frozen=True, slots=True)
class GroupWork:
    """The work of a group's slots, and the imbalance that is left.

    Attributes:
        relative: work of each slot over the mean of the group, by rank.
        imbalance_left: fraction of the time of the training steps, 0..1, that the slots wait for slower ones,
            on average over the slots; None if it is not known.
        num_epochs: number of epochs.
    """

    relative: tuple[float, ...]
    imbalance_left: float | None
    num_epochs: int


def group_work(epochs: Iterable[RankFacts]) -> GroupWork | None:
    """Sum up epochs of one group; None if its samples do not differ in size.

    Imbalance left is the sum of `waited_s` over the sum of `compute_s` and `collective_s`, of all epochs and
    ranks. So each step counts by itself: a slot that waits in one step and is waited for in the next is not
    balanced. Waiting for data is left out.

    Args:
        epochs: facts about the same ranks; epochs without `work` are left out.
    """
    sized = [(ranks, ranks.work) for ranks in epochs if ranks.work is not None and sum(ranks.work) > 0.0]
    if not sized:
        return None
    work = [sum(of_rank) for of_rank in zip(*(work for _, work in sized), strict=True)]
    mean = sum(work) / len(work)
    return GroupWork(tuple(each / mean for each in work), _left([ranks for ranks, _ in sized]), len(sized))


def _left(epochs: Iterable[RankFacts]) -> float | None:
    waited_s = steps_s = 0.0
    for ranks in epochs:
        waited_s += math.nan if ranks.waited_s is None else sum(ranks.waited_s)
        steps_s += sum(ranks.compute_s) + sum(ranks.collective_s)
    share = waited_s / steps_s if steps_s > 0.0 else math.nan
    return None if math.isnan(share) else min(1.0, share)

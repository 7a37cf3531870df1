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
        imbalance_left: fraction of the time of the training steps, 0..1, that the slots would wait for the
            slowest one if their speeds were exactly as planned; None if it is not known.
        waited: fraction of that time that they did wait, whatever the reason; None if it is not known.
        num_epochs: number of epochs.
    """

    relative: tuple[float, ...]
    imbalance_left: float | None
    waited: float | None
    num_epochs: int


def group_work(epochs: Iterable[RankFacts]) -> GroupWork | None:
    """Sum up epochs of one group; None if its samples do not differ in size.

    Imbalance left is what samples of unequal size cost after they were dealt: 1 - mean work over
    `slowest_work`, both summed over the steps. Each step counts by itself: a slot with more work in one step
    and less in the next is not balanced. It is free of noise, and of speeds that nobody planned with.

    Waited is the sum of `waited_s` over the sum of `compute_s` and `collective_s`. It holds what other load
    on the machine and unlike speeds cost too. Waiting for data is left out.

    Args:
        epochs: facts about the same ranks; epochs without `work` are left out.
    """
    sized = [(ranks, ranks.work) for ranks in epochs if ranks.work is not None and sum(ranks.work) > 0.0]
    if not sized:
        return None
    work = [sum(of_rank) for of_rank in zip(*(work for _, work in sized), strict=True)]
    mean = sum(work) / len(work)
    slowest = waited_s = steps_s = 0.0
    for ranks, _ in sized:
        slowest += math.nan if ranks.slowest_work is None else ranks.slowest_work
        waited_s += math.nan if ranks.waited_s is None else sum(ranks.waited_s)
        steps_s += sum(ranks.compute_s) + sum(ranks.collective_s)
    waited = _fraction(waited_s, steps_s)
    return GroupWork(
        tuple(each / mean for each in work), _fraction(slowest - mean, slowest), waited, len(sized)
    )


def _fraction(part: float, whole: float) -> float | None:
    """Limited to 0..1, because sums are rounded; None if it is not known."""
    if not whole > 0.0 or math.isnan(part):
        return None
    return min(1.0, max(0.0, part / whole))

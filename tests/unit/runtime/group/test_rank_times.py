"""Times of all ranks come together, each in its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcbal.events.history import RankFacts
from hpcbal.runtime.group.epoch import RankTimes


class SecondOfTwo:
    """A group of two whose first rank spent everything in the collective."""

    size, rank = 2, 1
    first: Sequence[float] = (0.0, 0.0, 9.0, 5.0, 1.0, 5.5, 7.0, 4.0, 0.5)

    def sum(self, tensors: Sequence[Any], status: np.ndarray[Any, Any]) -> tuple[Sequence[Any], Any]:
        return tensors, status + np.array([*self.first] + [0.0] * 9)

    def close(self) -> None:
        """Nothing to free."""


class WithIdle(SecondOfTwo):
    """The same, but the first rank has taken no step."""

    first = (0.0,) * 8 + (np.inf,)


def second() -> RankTimes:
    """Four steps of the second rank; an all-reduce takes 0.25 s, the rest is waiting."""
    times = RankTimes(wait_s=1.0, compute_s=2.0, samples=4, worked_s=2.5, work=4.25, slowest=7.0)
    for seconds in (0.75, 0.25, 1.5, 0.5):
        times.add_meeting(seconds)
    return times


def test_every_rank_has_its_column() -> None:
    columns = {
        "wait_s": (0.0, 1.0),
        "compute_s": (0.0, 2.0),
        "collective_s": (9.0, 3.0),
        "samples": (5, 4),
        "worked_s": (1.0, 2.5),
    }
    assert second().by_rank(SecondOfTwo()) == RankFacts(**columns)
    sized = second().by_rank(SecondOfTwo(), is_sized=True)
    assert sized == RankFacts(**columns, work=(5.5, 4.25), waited_s=(8.0, 2.0), slowest_work=7.0)


def test_without_a_step_nobody_has_waited() -> None:
    assert second().by_rank(WithIdle(), is_sized=True).waited_s == (0.0, 2.0)
    assert RankTimes().by_rank(WithIdle(), is_sized=True).waited_s == (0.0, 0.0)

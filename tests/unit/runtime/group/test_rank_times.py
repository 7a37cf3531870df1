"""Times of all ranks come together, each in its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcbal.runtime.group.rank_times import RankTimes
from hpcbal.telemetry.ledger import RankFacts


class SecondOfTwo:
    """A group of two whose first rank spent everything in the collective."""

    size, rank = 2, 1

    def sum(self, tensors: Sequence[Any], status: np.ndarray[Any, Any]) -> tuple[Sequence[Any], Any]:
        return tensors, status + np.array([0.0, 0.0, 9.0, 5.0, 1.0, 5.5] + [0.0] * 6)

    def close(self) -> None:
        """Nothing to free."""


def test_every_rank_has_its_column() -> None:
    times = RankTimes(1.0, 2.0, 3.0, 4, 2.5, 4.25)
    columns = {
        "wait_s": (0.0, 1.0),
        "compute_s": (0.0, 2.0),
        "collective_s": (9.0, 3.0),
        "samples": (5, 4),
        "worked_s": (1.0, 2.5),
    }
    assert times.by_rank(SecondOfTwo()) == RankFacts(**columns)
    assert times.by_rank(SecondOfTwo(), is_sized=True) == RankFacts(**columns, work=(5.5, 4.25))

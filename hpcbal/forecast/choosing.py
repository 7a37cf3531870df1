"""Where more workers stop paying, and the cheapest machines for a wanted throughput."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcbal.forecast.prediction import Prediction

WORTH = 0.5
"""Another worker pays if it adds at least this share of what a worker alone does."""


@dataclass(frozen=True, slots=True)
class Prices:
    """What a worker and a server cost, > 0; in ranks both cost 1."""

    worker: float = 1.0
    server: float = 1.0

    def of(self, prediction: Prediction) -> float:
        """The cost of all machines."""
        return prediction.num_workers * self.worker + prediction.num_servers * self.server


def knee(rows: Sequence[Prediction], alone: float) -> int | None:
    """The number of workers after which more no longer pay.

    That is the smallest number from which no larger one adds, for each added worker, at least half of what a
    worker alone does.

    Args:
        rows: with the same number of servers, with ascending numbers of workers.
        alone: samples per second of one worker, > 0.

    Returns: None if more workers pay up to the last row, or if there is only one.
    """
    for index, row in enumerate(rows[:-1]):
        added = (
            (more.samples_per_s.value - row.samples_per_s.value) / (more.num_workers - row.num_workers)
            for more in rows[index + 1 :]
        )
        if max(added) < WORTH * alone:
            return row.num_workers
    return None


def cheapest(rows: Sequence[Prediction], wanted: float, prices: Prices) -> Prediction | None:
    """The cheapest row that reaches a throughput; the faster one of two with the same cost.

    Args:
        wanted: samples per second.

    Returns: None if no row reaches it.
    """
    enough = [row for row in rows if row.samples_per_s.value >= wanted]
    return min(enough, key=lambda row: (prices.of(row), -row.samples_per_s.value), default=None)

"""A gradient collective that tells how long its last all-reduce took."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from hpcbal.training.arrays import Array
from hpcbal.training.collective import GradientCollective


class TimedCollective:
    """Passes everything on to `collective`; the all-reduce includes waiting for the group's slowest rank.

    Attributes:
        began_s, ended_s: `time.monotonic` around the last all-reduce, and around what the ranks were told
            when they met for it; equal in a group of one, which has nothing to sum.
    """

    def __init__(self, collective: GradientCollective) -> None:
        self._collective = collective
        self.size = collective.size
        self.rank = collective.rank
        self.meets = collective.meets
        self.began_s = self.ended_s = 0.0
        self._met_s: float | None = None

    def sum(self, tensors: Sequence[Any], status: Array) -> tuple[Sequence[Any], Array]:
        """As `GradientCollective.sum`."""
        if self.size == 1:
            return self._collective.sum(tensors, status)
        self.began_s = time.monotonic() if self._met_s is None else self._met_s
        self._met_s = None
        summed = self._collective.sum(tensors, status)
        self.ended_s = time.monotonic()
        return summed

    def exchange(self, numbers: Array) -> None:
        """As `GradientCollective.exchange`; `StepExchange` takes the time of it."""
        self._collective.exchange(numbers)

    def tell(self, numbers: Array) -> None:
        """As `GradientCollective.tell`; not timed."""
        self._collective.tell(numbers)

    def consult(self, numbers: Array, answer: Callable[[Array], Array]) -> Array:
        """As `GradientCollective.consult`; the all-reduce that follows begins with it."""
        self._met_s = time.monotonic()
        return self._collective.consult(numbers, answer)

    def close(self) -> None:
        """As `GradientCollective.close`."""
        self._collective.close()

"""A gradient collective that tells how long its last all-reduce took."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from hpcbal.training.backend import Array
from hpcbal.training.collective import GradientCollective


class TimedCollective:
    """Passes everything on to `collective`; the all-reduce includes waiting for the group's slowest rank.

    Attributes:
        began_s: `time.monotonic` when the last all-reduce began.
        seconds: what it took; 0 in a group of one, which has nothing to sum.
    """

    def __init__(self, collective: GradientCollective) -> None:
        self._collective = collective
        self.size = collective.size
        self.rank = collective.rank
        self.began_s = 0.0
        self.seconds = 0.0

    def sum(self, tensors: Sequence[Any], status: Array) -> tuple[Sequence[Any], Array]:
        """As `GradientCollective.sum`."""
        self.began_s = time.monotonic()
        summed = self._collective.sum(tensors, status)
        if self.size > 1:
            self.seconds = time.monotonic() - self.began_s
        return summed

    def close(self) -> None:
        """As `GradientCollective.close`."""
        self._collective.close()

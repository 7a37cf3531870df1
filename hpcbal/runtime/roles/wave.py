"""Time the groups of a profiling wave together, so that each is measured on a machine at work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Wave(Protocol):
    """Where the ranks of a profiling wave meet; no call waits, so all ranks keep working meanwhile."""

    def all_warm(self) -> bool:
        """Report that this rank has done its first step; returns whether all ranks have."""

    def all_timed(self) -> bool:
        """Report that this rank's steps have been timed; returns whether those of all ranks have."""

    def leave(self, poll: Callable[[], None]) -> None:
        """Wait until all ranks have met; the last call, after a failure too.

        Args:
            poll: called again and again while waiting.
        """

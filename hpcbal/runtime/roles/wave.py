"""Synchronise the groups of a profiling wave, so that each is timed while the others work too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Wave(Protocol):
    """Synchronises the ranks of a profiling wave; only `leave` waits, so all ranks can keep working."""

    def all_warm(self) -> bool:
        """Report that this rank has done its first step; returns whether all ranks have."""

    def all_timed(self) -> bool:
        """Report that this rank's steps have been timed; returns whether those of all ranks have."""

    def leave(self, poll: Callable[[], None]) -> None:
        """Wait until all ranks have been timed; must be the last call, also after a failure.

        Args:
            poll: called repeatedly while waiting.
        """

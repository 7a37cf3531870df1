"""Turns of a worker whose updates are not all applied, and their reports in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from hpcbal.paramserver.machine.messages import TurnDone

MAX_OPEN_TURNS = 4
"""A worker that is further ahead of its servers waits."""


class OpenTurns:
    """Reports turns in the order in which they were taken.

    Updates of a turn may be applied before those of the turn before: one without samples has none, and rows
    of a sparse table may be at another server. A data block has done a step only when it has done those
    before.

    Args:
        report: sends a report to the master.
    """

    def __init__(self, report: Callable[[TurnDone], None]) -> None:
        self._report = report
        self._open: deque[list[TurnDone]] = deque()

    def __len__(self) -> int:
        return len(self._open)

    def begin(self) -> Callable[[TurnDone], None]:
        """A turn begins; returns what is to be called with its report, once its updates are applied."""
        slot: list[TurnDone] = []
        self._open.append(slot)

        def done(report: TurnDone) -> None:
            slot.append(report)
            while self._open and self._open[0]:
                self._report(*self._open.popleft())

        return done

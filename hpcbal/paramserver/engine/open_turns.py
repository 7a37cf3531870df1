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
        self._num_begun = self._num_reported = 0
        self._after: deque[tuple[int, Callable[[], None]]] = deque()  # with the turns that must be over

    def __len__(self) -> int:
        return len(self._open)

    def begin(self) -> Callable[[TurnDone], None]:
        """A turn begins; returns what is to be called with its report, once its updates are applied."""
        slot: list[TurnDone] = []
        self._open.append(slot)
        self._num_begun += 1

        def done(report: TurnDone) -> None:
            slot.append(report)
            while self._open and self._open[0]:
                self._report(*self._open.popleft())
                self._num_reported += 1
            self._call_due()

        return done

    def after(self, action: Callable[[], None]) -> None:
        """Call `action` when the turns that have begun are reported; now, if they are."""
        self._after.append((self._num_begun, action))
        self._call_due()

    def _call_due(self) -> None:
        while self._after and self._after[0][0] <= self._num_reported:
            self._after.popleft()[1]()

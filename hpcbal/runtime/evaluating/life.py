"""Signs of life of a rank that evaluates: what it does now, and that it waits while others work."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from hpcbal.runtime.handoff.activity import Activity

WAITING = "waiting for other ranks"
"""The activity of a rank that waits; it may last as long as the work of the others."""

T = TypeVar("T")


class Trace(Protocol):
    """Writes the stacks of this process unless it is renewed in time; see `HangTrace`."""

    def renew(self) -> None:
        """Restart the countdown."""

    def pause(self) -> None:
        """Stop the countdown until it is renewed."""


class Life:
    """Notes what this rank does, for the ranks of its node that watch it.

    Args:
        activity: the rank's text in memory that they share.
        trace: also renewed by each note; None: without one.
    """

    def __init__(self, activity: Activity, trace: Trace | None = None) -> None:
        self._activity = activity
        self._trace = trace

    def note(self, doing: str) -> None:
        """What this rank does from now on; a rank that makes progress notes something else each time."""
        self._activity.note(doing)
        if self._trace is not None:
            self._trace.renew()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """While the block runs, this rank waits for others."""
        before = str(self._activity)
        self._activity.note(WAITING)
        if self._trace is not None:
            self._trace.pause()
        yield
        self.note(before)

    def doing(self, what: str, work: Callable[[], T]) -> Callable[[], T]:
        """The same work as a step that others may wait for: noted before, and over afterwards."""

        def noted() -> T:
            self.note(what)
            try:
                return work()
            finally:
                self._activity.note(WAITING)
                if self._trace is not None:
                    self._trace.pause()

        return noted

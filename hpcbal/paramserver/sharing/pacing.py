"""Emulated machines: computing and reading take the time of given cores and disks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from hpcbal.paramserver.sharing.processor import EvenShares


class PacedResource:
    """What jobs share on an emulated machine: using it takes no less than there, and longer beside others."""

    def __init__(self) -> None:
        self._shares = EvenShares()
        self._changed = threading.Condition()

    @contextmanager
    def taking(self, job: str, seconds: float) -> Iterator[None]:
        """What is done here takes so many seconds of the resource; without an error, returns when it has had
        them.

        Args:
            job: only one use of a job is under way at a time.
            seconds: if nobody else uses it.
        """
        with self._changed:
            self._shares.begin(job, seconds, time.monotonic())
            self._changed.notify_all()
        try:
            yield
            with self._changed:
                self._wait_for(job)
        finally:
            with self._changed:
                self._shares.leave(job, time.monotonic())
                self._changed.notify_all()

    def _wait_for(self, job: str) -> None:
        shares = self._shares
        shares.end_due(time.monotonic())
        while job in shares.left:
            self._changed.wait(max(0.0, shares.until + shares.until_next_end - time.monotonic()))
            shares.end_due(time.monotonic())

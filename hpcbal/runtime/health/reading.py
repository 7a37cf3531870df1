"""Notice a dataset whose reader blocks, and name the sample: the rank that reads cannot do so itself."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

log = logging.getLogger(__name__)

LOOKS_PER_LIMIT = 4


class Reader(Protocol):
    """What is watched; `hpcbal.data.source.SampleSource` is one.

    Attributes:
        reading: id of the sample that is being read, and `time.monotonic` when the read began; None between
            two reads.
    """

    reading: tuple[int, float] | None

    def where(self, sample_id: int) -> str:
        """What people call a sample, such as a file name."""


class ReadWatch:
    """Finds reads that last too long; any thread may ask.

    Args:
        reader: the source of samples.
        limit_s: longest time that a read may take without a report.
    """

    def __init__(self, reader: Reader, limit_s: float) -> None:
        self.limit_s = limit_s
        self._reader = reader
        self._found: tuple[int, float] | None = None

    def is_blocked(self) -> bool:
        """Whether the read that goes on now has lasted longer than the limit."""
        reading = self._reader.reading
        return reading is not None and time.monotonic() - reading[1] > self.limit_s

    def news(self) -> str | None:
        """Text about such a read, once for each; otherwise None. Also writes it to the log."""
        reading = self._reader.reading
        if reading is None or reading is self._found or not self.is_blocked():
            return None
        self._found = reading
        text = f"blocked in reading sample {reading[0]} ({self._reader.where(reading[0])})"
        log.warning("%s for %.1f s", text, time.monotonic() - reading[1])
        return text


@contextmanager
def watched(watch: ReadWatch, report: Callable[[str], None]) -> Iterator[None]:
    """Call `report` from a thread for each read that lasts too long, while this thread reads."""
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(watch.limit_s / LOOKS_PER_LIMIT):
            if (text := watch.news()) is not None:
                report(text)

    thread = threading.Thread(target=look, name="read-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()

"""Signals set a flag; the rank's own loop acts on it at the next step."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class StopFlag:
    """Remembers the first signal that asked for a clean stop.

    TERM and USR2 ask for it (NCCL catches USR1); INT too, for a rank that a person interrupts directly.
    A second INT ends the process at once.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT)

    def __init__(self) -> None:
        self.reason: str | None = None
        self._told = False

    def install(self) -> None:
        """Catch the signals; only from the main thread."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("signal handlers can only be installed from the main thread")
        for number in self.SIGNALS:
            signal.signal(number, self._handle)

    def ignore(self) -> None:
        """From now on the signals do nothing: all is over, and the exit code is decided."""
        for number in self.SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def take(self) -> str | None:
        """The reason, the first time that it is asked for after the signal; else None."""
        if self.reason is None or self._told:
            return None
        self._told = True
        return self.reason

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.reason is not None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)
        if self.reason is None:
            self.reason = f"signal {signal.Signals(number).name}"

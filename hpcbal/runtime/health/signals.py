"""Catch signals: they set a flag, and the rank's own loop acts on it at the next step."""

from __future__ import annotations

import signal
import threading
from types import FrameType

from hpcbal.runtime.handoff.start_file import StartFile
from hpcbal.stop_signals import STOP_SIGNALS, deliver_stop_signals

_PASSED_ON = f"signal {signal.SIGUSR2.name}"


class StopFlag:
    """Remembers the first signal that asked for a clean stop.

    These signals are `STOP_SIGNALS`: a batch system may send any of them to the ranks. A second INT ends the
    process at once. `hpcbal run` passes every signal on as USR2; the reason names the one that it got.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self._is_taken = False

    def install(self) -> None:
        """Catch the signals; must be called from the main thread."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("signal handlers can only be installed from the main thread")
        for number in STOP_SIGNALS:
            signal.signal(number, self._handle)
        deliver_stop_signals()

    def ignore(self) -> None:
        """Ignore the signals from now on, because the exit code is decided."""
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def take(self) -> str | None:
        """Return the reason once after the signal; otherwise None."""
        if self.reason is None or self._is_taken:
            return None
        self._is_taken = True
        if self.reason == _PASSED_ON and (sent := StartFile.of_rank().read().stop_signal) is not None:
            self.reason = f"signal {sent}"
        return self.reason

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.reason is not None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)
        if self.reason is None:
            self.reason = f"signal {signal.Signals(number).name}"

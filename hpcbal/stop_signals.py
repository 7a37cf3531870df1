"""The signals that end a run with a checkpoint, and keeping them back until somebody handles them.

Imports nothing that is not part of the interpreter: a signal that arrives before `keep_stop_signals` leaves a
traceback, or ends the process at once.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]

STOP_SIGNALS: tuple[int, ...] = (
    _signal.SIGTERM,
    _signal.SIGINT,
    _signal.SIGHUP,
    _signal.SIGUSR1,
    _signal.SIGUSR2,
    _signal.SIGXCPU,
)
"""Numbers. Batch systems, terminals and users send any of them, to the program or to its ranks."""


def keep_stop_signals() -> None:
    """Block the signals: they wait until `deliver_stop_signals`, and end nothing meanwhile.

    Called before any thread exists; threads and child processes inherit the mask.
    """
    _signal.pthread_sigmask(_signal.SIG_BLOCK, STOP_SIGNALS)


def deliver_stop_signals() -> None:
    """Let the signals through, once their handlers are installed; those that have waited come now."""
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, STOP_SIGNALS)

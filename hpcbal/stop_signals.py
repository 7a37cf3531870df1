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


def outlast_stop_signals() -> None:
    """Give the signals a handler that does nothing: one that comes too late changes no exit code.

    `Requests` and `StopFlag` replace it while there is something to stop. A program that is started from here
    has the default handlers, which it would not have if the signals were ignored.
    """
    for number in STOP_SIGNALS:
        _signal.signal(number, _do_nothing)


def ignore_stop_signals() -> None:
    """Ignore the signals for good, in all threads: Python gives handlers back before it ends."""
    for number in STOP_SIGNALS:
        _signal.signal(number, _signal.SIG_IGN)


def _do_nothing(number: int, frame: object) -> None:
    pass


def keep_stop_signals() -> None:
    """Block the signals: they wait until `deliver_stop_signals`, and end nothing meanwhile.

    Called before any thread exists; threads and child processes inherit the mask.
    """
    _signal.pthread_sigmask(_signal.SIG_BLOCK, STOP_SIGNALS)


def deliver_stop_signals() -> None:
    """Let the signals through, once their handlers are installed; those that have waited come now."""
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, STOP_SIGNALS)

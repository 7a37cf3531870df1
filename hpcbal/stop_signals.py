"""The signals that ask for a clean stop, and how they are kept until a process can act on them."""

from __future__ import annotations

import signal

STOP_SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGXCPU,
)
"""Batch systems, terminals and users send any of them, to the program or to its ranks."""


def keep_stop_signals() -> None:
    """Block the signals: they wait until `deliver_stop_signals`, and end nothing meanwhile.

    Called before any thread exists; threads and child processes inherit the mask.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def deliver_stop_signals() -> None:
    """Let the signals through, once their handlers are installed; those that have waited come now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

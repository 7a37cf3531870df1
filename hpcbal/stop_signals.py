"""The signals that ask for a clean stop, and how they are kept until a process can act on them."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

STOP_SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGXCPU,
)
"""Batch systems, terminals and users send any of them, to the program or to its ranks."""

SHIELDED = (signal.SIGTERM, signal.SIGHUP)
"""Of these, what mpirun never acts on: it would kill its ranks before they could write checkpoints."""


@contextlib.contextmanager
def shielding() -> Iterator[None]:
    """Start processes that leave `SHIELDED` pending, where the one that has started them looks for them.

    Open MPI keeps the mask that it inherits, and gives its ranks an empty one.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SHIELDED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def keep_stop_signals() -> None:
    """Block the signals: they wait until `deliver_stop_signals`, and end nothing meanwhile.

    Called before any thread exists; threads and child processes inherit the mask.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def deliver_stop_signals() -> None:
    """Let the signals through, once their handlers are installed; those that have waited come now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

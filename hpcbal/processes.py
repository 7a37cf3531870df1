"""The duties of every process of hpcbal: write to stderr, shield what it starts, leave forked copies."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from typing import TextIO

from hpcbal.safe_text import printable

_own_streams: dict[str, TextIO] = {}


def speak_by(name: str, stream: TextIO) -> None:
    """Let hpcbal print to this stream instead of `sys.stdout` or `sys.stderr`, which code of users shares.

    Args:
        name: `stdout` or `stderr`.
        stream: where it goes.
    """
    _own_streams[name] = stream


def own_stream(name: str) -> TextIO:
    """Return the stream to which hpcbal itself prints.

    Args:
        name: `stdout` or `stderr`.
    """
    stream: TextIO = _own_streams.get(name) or getattr(sys, name)
    return stream


def say(text: str) -> None:
    """Print printable lines to stderr; if that fails, they are lost, but the run and its exit code stay.

    Ctrl-C in `hpcbal run ... 2>&1 | tee log` also ends tee, a terminal may be closed, a disk full, and stderr
    closed from the start (`2>&-`). The text bypasses Python's buffer: unread text in it would make Python
    complain at exit, with its own exit code.
    """
    stream = own_stream("stderr")
    if stream is None:
        return
    line = f"{printable(text)}\n"
    with contextlib.suppress(OSError, ValueError):  # ValueError: it has been closed
        stream.flush()
        try:
            descriptor = stream.fileno()
        except io.UnsupportedOperation:  # not a file
            stream.write(line)
        else:
            os.write(descriptor, line.encode(stream.encoding, "backslashreplace"))


_rank_pid: int | None = None


def remember_rank() -> None:
    """Remember that this process is a rank; called once, before any user code runs."""
    global _rank_pid
    _rank_pid = os.getpid()


def is_rank() -> bool:
    """Return whether this process, or the one that it was forked from, is a rank."""
    return _rank_pid is not None


def leave_if_forked(what: str) -> None:
    """Call this after user code has returned: a forked copy of a rank ends here, and the rank continues.

    The copy shares the rank's MPI connections, so a single message from it would disturb the whole job.

    Args:
        what: the user code, for the message.
    """
    if _rank_pid is not None and os.getpid() != _rank_pid:
        say(f"hpcbal: warning: {what} has forked; the new process (pid {os.getpid()}) returned and ends here")
        os._exit(0)


SHIELDED = (signal.SIGTERM, signal.SIGHUP)
"""Signals that mpirun must never act on: it would kill its ranks before they could write checkpoints."""


@contextlib.contextmanager
def shielding(signals: Iterable[int] = SHIELDED) -> Iterator[None]:
    """Start processes that leave signals pending, where the one that has started them looks for them.

    Open MPI keeps the mask that it inherits, and gives its ranks an empty one. hpcbal delivers them once it
    can handle them.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

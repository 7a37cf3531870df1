"""Write to stderr in a way that never blocks or fails the run."""

from __future__ import annotations

import contextlib
import io
import os
import sys

from hpcbal.printable import printable


def say(text: str) -> None:
    """Print printable lines to stderr; if that fails, they are lost, but the run and its exit code stay.

    Ctrl-C in `hpcbal run ... 2>&1 | tee log` also ends tee, a terminal may be closed, a disk full, and stderr
    closed from the start (`2>&-`). The text bypasses Python's buffer: unread text in it would make Python
    complain at exit, with its own exit code.
    """
    if sys.stderr is None:
        return
    text = printable(text)
    with contextlib.suppress(OSError, ValueError):  # ValueError: it has been closed
        sys.stderr.flush()
        try:
            descriptor = sys.stderr.fileno()
        except io.UnsupportedOperation:  # not a file
            print(text, file=sys.stderr)
        else:
            os.write(descriptor, f"{text}\n".encode(sys.stderr.encoding, "backslashreplace"))

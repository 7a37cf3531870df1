"""Say something on stderr without hanging anything on its being read."""

from __future__ import annotations

import contextlib
import io
import os
import sys


def say(text: str) -> None:
    """Print lines to stderr; lost where they cannot be written, which must not change the run or its code.

    Ctrl-C in `hpcbal run ... 2>&1 | tee log` ends tee too, a terminal may be closed, a disk full, and stderr
    closed from the beginning (`2>&-`). Past Python's buffer: what stays in it for want of a reader makes
    Python complain at exit, with an exit code of its own.
    """
    if sys.stderr is None:
        return
    with contextlib.suppress(OSError, ValueError):  # ValueError: it has been closed
        sys.stderr.flush()
        try:
            descriptor = sys.stderr.fileno()
        except io.UnsupportedOperation:  # not a file
            print(text, file=sys.stderr)
        else:
            os.write(descriptor, f"{text}\n".encode(sys.stderr.encoding, "backslashreplace"))

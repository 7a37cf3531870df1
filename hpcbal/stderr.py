"""Say something on stderr without hanging anything on its being read."""

from __future__ import annotations

import errno
import os
import sys


def say(text: str) -> None:
    """Print lines to stderr; lost where nobody can read them, which must not change the run or its code.

    Ctrl-C in `hpcbal run ... 2>&1 | tee log` ends tee too, a terminal may be closed, and so may stderr from
    the beginning (`2>&-`).
    """
    if sys.stderr is None:
        return
    try:
        print(text, file=sys.stderr, flush=True)
    except ValueError:  # it has been closed
        return
    except OSError as error:
        if error.errno in (errno.EPIPE, errno.EIO):  # else the next line may find its way
            _drop_what_is_said()


def _drop_what_is_said() -> None:
    """Write nothing from now on: Python would complain when it flushes at exit, with its own exit code."""
    unread, stderr = os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno()
    if unread != stderr:
        os.dup2(unread, stderr)
        os.close(unread)

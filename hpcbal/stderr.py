"""Say something on stderr without hanging anything on its being read."""

from __future__ import annotations

import os
import sys


def say(text: str) -> None:
    """Print lines to stderr; lost if nobody reads it any more, which must not change the run or its code.

    Ctrl-C in `hpcbal run ... 2>&1 | tee log` ends tee too, and a terminal may be closed.
    """
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:  # Python would complain again when it flushes at exit, with an exit code of its own
        unread = os.open(os.devnull, os.O_WRONLY)
        os.dup2(unread, sys.stderr.fileno())
        os.close(unread)

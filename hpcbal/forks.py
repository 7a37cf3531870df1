"""End a process that user code has forked once it returns into hpcbal: it is a second copy of its rank."""

from __future__ import annotations

import os

from hpcbal.stderr import say

_rank_pid: int | None = None


def remember_rank() -> None:
    """Remember that this process is a rank; called once, before any user code runs."""
    global _rank_pid
    _rank_pid = os.getpid()


def leave_if_forked(what: str) -> None:
    """Call this after user code has returned: a forked copy of a rank ends here, and the rank continues.

    The copy shares the rank's MPI connections, so a single message from it would disturb the whole job.

    Args:
        what: the user code, for the message.
    """
    if _rank_pid is not None and os.getpid() != _rank_pid:
        say(f"hpcbal: warning: {what} has forked; the new process (pid {os.getpid()}) returned and ends here")
        os._exit(0)

"""What a rank does now, for others to read, and the exit code that it may choose.

Job scripts run the same job again after 75, and mpirun waits for the last rank.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any

from hpcbal.errors import ExitCode
from hpcbal.processes import say
from hpcbal.runtime.handoff.start_file import StartFile
from hpcbal.runtime.handoff.supervision import TRAINING

NUM_BYTES = 160
"""Of a rank's text; a longer one is cut."""


class Activity:
    """One rank's own text, such as "training resnet8"; in shared memory once `keep_in` was called."""

    def __init__(self) -> None:
        self._memory: Any = bytearray(NUM_BYTES)

    def keep_in(self, memory: Any) -> None:
        """Move the text into this buffer of `NUM_BYTES` bytes."""
        memory[:] = self._memory[:]
        self._memory = memory

    def note(self, doing: str) -> None:
        """Replace the text."""
        self._memory[:] = doing.encode()[:NUM_BYTES].ljust(NUM_BYTES, b"\0")

    def __str__(self) -> str:
        return text_in(self._memory)


def text_in(memory: Any) -> str:
    """The text in a rank's buffer; empty if the rank has noted nothing."""
    return bytes(memory).partition(b"\0")[0].decode(errors="replace")


def seen(activity: object) -> str:
    """A rank's last activity, for a sentence about its end: behind the rank and its host; may be empty."""
    return f" (last seen {activity})" if str(activity) else ""


LEAVE_S = 5.0
"""How long code of the user may keep a rank from ending whose work is done."""


@contextlib.contextmanager
def own_exit_code(rank: int | None, activity: Activity, again: str = TRAINING.again) -> Iterator[None]:
    """Until the run has decided its end, `os._exit` in this process reports an error and exits with 1.

    With launchers other than `hpcbal run`, the exit code of a rank is the only trace that it leaves.
    Processes that this one forks are not affected.

    Args:
        rank: rank of this process, if known.
        activity: what it does.
        again: what to do next; a sentence.
    """
    pid, real = os.getpid(), os._exit

    def leave(status: int) -> None:
        if os.getpid() == pid:
            who = f"{'a rank' if rank is None else f'rank {rank}'} on {socket.gethostname()}{seen(activity)}"
            _report(
                f"{who}: code of the user, for example a model, ended the process "
                f"with os._exit({status}); the job ends here. Remove that call. {again}"
            )
            status = int(ExitCode.INTERNAL_ERROR)
        real(status)

    vars(os)["_exit"] = leave
    try:
        yield
    finally:
        vars(os)["_exit"] = real


def leave_soon(rank: int | None, code: int) -> None:
    """End this process in `LEAVE_S` at the latest; everything is recorded.

    Python would wait at its exit for threads that are no daemons, and for processes of `multiprocessing`.

    Args:
        rank: rank of this process, if known.
        code: exit code of this process.
    """
    real = os._exit

    def leave() -> None:
        threads = [thread for thread in threading.enumerate() if not thread.daemon]
        names = [repr(thread.name) for thread in threads if thread is not threading.main_thread()]
        names += [repr(process.name) for process in multiprocessing.active_children()]
        if names:
            who = "a rank" if rank is None else f"rank {rank}"
            say(
                f"hpcbal: warning: {who}: {', '.join(names)} still ran {LEAVE_S:.0f} s after the end of the "
                "run; the rank ends without waiting. Start threads and processes with daemon=True"
            )
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed
            sys.stdout.flush()
        real(code)

    timer = threading.Timer(LEAVE_S, leave)
    timer.daemon = True
    timer.start()


def _report(text: str) -> None:
    start = StartFile.of_rank()
    if not start.leave_last_words(text):
        say(f"hpcbal: {text}")
    start.hint(abort_code=int(ExitCode.INTERNAL_ERROR))

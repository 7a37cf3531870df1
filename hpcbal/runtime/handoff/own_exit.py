"""Keep user code from choosing the exit code of a rank: job scripts run the same job again after 75."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

from hpcbal.errors import ExitCode
from hpcbal.runtime.handoff.activity import Activity, seen
from hpcbal.runtime.handoff.sentences import TRAINING
from hpcbal.runtime.handoff.start_file import StartFile
from hpcbal.stderr import say


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


def _report(text: str) -> None:
    start = StartFile.of_rank()
    if not start.leave_last_words(text):
        say(f"hpcbal: {text}")
    start.hint(abort_code=int(ExitCode.INTERNAL_ERROR))

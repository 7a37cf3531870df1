"""End a rank that nothing else would end: its descriptors are closed, or who started it is gone.

A dataset or model may close descriptors that it has not opened. MPI then fails, or spins for ever, and
neither its abort nor a launcher reaches the rank. This thread needs no open descriptor, and no MPI.
"""

from __future__ import annotations

import os
import socket
import threading
import time

from hpcbal.errors import ExitCode
from hpcbal.runtime.handoff.activity import Activity, seen
from hpcbal.runtime.handoff.sentences import TRAINING, Sentences
from hpcbal.runtime.handoff.start_file import StartFile
from hpcbal.stderr import say
from hpcbal.telemetry.host.processes import process_is_gone

POLL_INTERVAL_S = 0.2


class Lifeline:
    """A thread that ends this process in such a case.

    Args:
        rank: rank of this process, if known.
        start: the start file; without one, a launcher of the site has started the rank.
        activity: what the rank does, for the message.
        sentences: of the verb.
    """

    def __init__(
        self, rank: int | None, start: StartFile, activity: Activity, sentences: Sentences = TRAINING
    ) -> None:
        self._who = f"{'a rank' if rank is None else f'rank {rank}'} on {socket.gethostname()}"
        self._start, self._activity, self._sentences = start, activity, sentences
        self._starter_pid = start.read().starter_pid
        self._exit = os._exit  # of the system: `own_exit_code` replaces it
        self._canary = os.open(os.devnull, os.O_RDWR)
        self._device = os.fstat(self._canary).st_rdev
        threading.Thread(target=self._watch, name="lifeline", daemon=True).start()

    def _watch(self) -> None:
        orphaned_s: float | None = None
        while orphaned_s is None or time.monotonic() - orphaned_s < self._sentences.orphaned_s:
            time.sleep(POLL_INTERVAL_S)
            if self._is_cut():
                self._report()
                break
            if orphaned_s is None and self._starter_pid is not None and process_is_gone(self._starter_pid):
                orphaned_s = time.monotonic()
                for stream in (1, 2):  # nobody reads it, and mpirun would keep it in memory
                    os.dup2(self._canary, stream)
        self._exit(int(ExitCode.INTERNAL_ERROR))

    def _is_cut(self) -> bool:
        """Whether the first descriptor of this process was closed, and others with it."""
        try:
            return os.fstat(self._canary).st_rdev != self._device
        except OSError:
            return True

    def _report(self) -> None:
        text = (
            f"{self._who}{seen(self._activity)}: code of the user closed file descriptors that it had not "
            "opened (for example with os.closerange), and MPI cannot work without them; the job ends here. "
            f"Close only what your code has opened. {self._sentences.again}"
        )
        if not self._start.leave_last_words(text):
            say(f"hpcbal: {text}")
        self._start.hint(abort_code=int(ExitCode.INTERNAL_ERROR))

"""End a rank whose MPI hangs, with a sentence: MPI may hold the interpreter, so a second process watches."""

from __future__ import annotations

import faulthandler
import os
import select
from collections.abc import Callable


class Watch:
    """Watches the stages of this process; one that takes too long is named, and the process exits with 1.

    Make it before MPI and threads are loaded, because it forks.

    Args:
        limit_s: seconds that a stage may take.
        tell: prints what has hung; called in the process that watches.
    """

    def __init__(self, limit_s: float, tell: Callable[[str], None]) -> None:
        self._limit_s = limit_s
        reading, self._writing = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._writing)
            try:
                _watch(reading, limit_s, tell)
            finally:
                os._exit(0)
        os.close(reading)
        os.set_inheritable(self._writing, False)
        self._nowhere = open(os.devnull, "w")  # noqa: SIM115 - as long as the process

    def stage(self, what: str) -> None:
        """Begin a stage.

        Args:
            what: what it does, in some words.
        """
        os.write(self._writing, f"{what}\n".encode())
        # A thread in C, which needs no interpreter; a second later, so that the sentence comes first.
        faulthandler.dump_traceback_later(self._limit_s + 1.0, exit=True, file=self._nowhere)

    def close(self) -> None:
        """Stop watching."""
        faulthandler.cancel_dump_traceback_later()
        os.close(self._writing)
        os.waitpid(self._pid, 0)


def _watch(reading: int, limit_s: float, tell: Callable[[str], None]) -> None:
    doing = "the start"
    while True:
        ready, _, _ = select.select([reading], [], [], limit_s)
        if not ready:
            tell(doing)
            return
        said = os.read(reading, 65536)
        if not said:
            return
        doing = said.decode().splitlines()[-1]

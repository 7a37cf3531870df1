"""What `hpcbal run` and the ranks that it starts know of each other: one file that all of them append to.

Each line states facts as a JSON object and is written by a single call. A writer may be killed at any moment,
so a reader ignores a line that is not whole. It is a file, not a pipe or a socket, because facts travel both
ways and outlive their writers, and because mpirun closes what it inherits before it starts the ranks.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hpcbal import env
from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.errors import OutputError
from hpcbal.telemetry.files.atomic_file import output_error
from hpcbal.telemetry.host.processes import process_is_gone

LAUNCH_DIR = "HPCBAL_LAUNCH_DIR"
"""The variable that names the directory of the file to the ranks."""
NAME = "start.jsonl"
LOOK_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class StartFacts:
    """The facts of one start that have been stated so far.

    Attributes:
        starter_pid: process id of `hpcbal run`; None if its file is gone.
        locked_on: the host on which the users of the file lock it; None if it cannot be locked.
        is_ready: all ranks catch signals. Until then a signal would kill them.
        is_watched: the ranks of a node watch each other. Until then only mpirun notices a death.
        is_stopping: the run was asked to stop. Rank 0 reports it too, but is not heard if mpirun is ending.
        is_orphaned: mpirun is gone and has left the ranks behind, so they must stop.
        last_words: why the ranks end, for `hpcbal run` to report.
        abort_code: a rank has ended the job with this exit code and has reported why.
        exit_code: the decided end of the run.
    """

    starter_pid: int | None = None
    locked_on: str | None = None
    is_ready: bool = False
    is_watched: bool = False
    is_stopping: bool = False
    is_orphaned: bool = False
    last_words: str | None = None
    abort_code: int | None = None
    exit_code: int | None = None


FACTS = frozenset(field.name for field in fields(StartFacts))


def facts_in(content: bytes) -> StartFacts:
    """The facts that whole lines state; if several state the same, the first one counts."""
    stated: dict[str, Any] = {}
    for line in content[: content.rfind(b"\n") + 1].splitlines():
        with contextlib.suppress(ValueError, TypeError):  # empty, or cut off by a full disk
            stated = {**json.loads(line), **stated}
    return StartFacts(**{name: value for name, value in stated.items() if name in FACTS})


class StartFile:
    """The file of one start, for `hpcbal run` and for its ranks.

    A rank that no `hpcbal run` has started, or whose `hpcbal run` has removed the file, states its facts to
    nobody.

    Args:
        directory: of this start; None if no `hpcbal run` has started this rank.

    Attributes:
        path: of the file; None without a directory.
    """

    def __init__(self, directory: Path | None) -> None:
        self.path = None if directory is None else directory / NAME

    @classmethod
    def of_rank(cls) -> StartFile:
        """The file of the start that this process is a rank of."""
        value = env.read(LAUNCH_DIR)
        return cls(None if value is None else Path(value))

    def read(self) -> StartFacts:
        """All facts so far; none of them if the file is gone."""
        if self.path is None:
            return StartFacts()
        try:
            return facts_in(self.path.read_bytes())
        except OSError:
            return StartFacts()

    def add(self, **facts: Any) -> bool:
        """State facts, named as in `StartFacts`; returns False if the file is gone.

        Raises:
            OutputError: the line cannot be written.
        """
        if self.path is None:
            return False
        line = f"\n{json.dumps(facts)}\n".encode()  # what is cut off before it stays a line of its own
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
            try:
                is_whole = os.write(descriptor, line) == len(line)
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise output_error(self.path, error) from error
        if not is_whole:
            raise OutputError(f"{self.path}: cannot write: the file system is full; free space")
        return True

    def hint(self, **facts: Any) -> None:
        """State facts that make a report better, where that is possible; nothing depends on them."""
        with contextlib.suppress(OutputError):
            self.add(**facts)

    def leave_last_words(self, text: str) -> bool:
        """Let `hpcbal run` report why the ranks end; False if this rank must report it.

        mpirun is ending the job and may kill the rank at any moment. A single write decides who reports: with
        the line `hpcbal run` reports this text, without it what it knows itself, and never both. Only if the
        line cannot be written (the disk is full) both may report.
        """
        pid = self.read().starter_pid
        if pid is None or process_is_gone(pid):
            return False
        try:
            return self.add(last_words=text)
        except OutputError:
            return False

    def leave_exit_code(self, rank: int, code: int) -> int:
        """Decide the end of the run; returns the exit code of this process.

        If `hpcbal run` has started mpirun, rank 0 leaves the code in the file and all ranks end with 0:
        mpirun would report any other code as a crash.
        """
        if rank == SCHEDULER_RANK:
            self.add(exit_code=code)
        return code if self.path is None else 0


class StarterWatch:
    """Notices that the `hpcbal run` that started the ranks, or its mpirun, is gone.

    Args:
        start: the file of this start; `hpcbal run` removes it when it ends, perhaps before the first look.
    """

    def __init__(self, start: StartFile) -> None:
        self._start = start
        self._pid = start.read().starter_pid
        self._is_over = start.path is None
        self._look_at_s = 0.0

    def lost(self) -> str | None:
        """The reason for stopping, at the first look after one of them is gone."""
        now = time.monotonic()
        if self._is_over or now < self._look_at_s:
            return None
        self._look_at_s = now + LOOK_INTERVAL_S
        if self._start.read().is_orphaned:
            reason = "the mpirun that started the ranks is gone"
        elif self._pid is None or process_is_gone(self._pid):
            reason = "the hpcbal that started the ranks is gone"
        else:
            return None
        self._is_over = True
        return reason

"""The start file, to which `hpcbal run` and the ranks that it starts append facts for each other.

Each line is a JSON object with facts, written by a single call. A writer may be killed at any moment, so a
reader ignores incomplete lines. It is a file, not a pipe or a socket, because facts travel both ways and
outlive their writers, and because mpirun closes inherited descriptors before it starts the ranks.
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
from hpcbal.runtime.handoff.end_file import note_end
from hpcbal.telemetry.files.atomic_file import output_error
from hpcbal.telemetry.resources.processes import process_is_gone

LAUNCH_DIR = "HPCBAL_LAUNCH_DIR"
"""The environment variable that gives the ranks the directory of the start file."""
NAME = "start.jsonl"
LOOK_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class StartFacts:
    """The facts about one start that have been written so far.

    Attributes:
        starter_pid: process id of `hpcbal run`; None if its file is gone.
        locked_on: the host on which processes lock the file; None if it cannot be locked.
        is_ready: all ranks catch signals. Before that, a signal would kill them.
        is_watched: the ranks of a node watch each other. Before that, only mpirun detects a death.
        is_stopping: the run was asked to stop. Rank 0 also prints this, but its output is lost if mpirun is
            ending.
        stop_signal: the name of the signal with which the user asked to stop, such as `SIGTERM`. `hpcbal run`
            passes all of them on as USR2.
        is_orphaned: mpirun is gone and the ranks have survived it, so they must stop.
        last_words: why the ranks end, for `hpcbal run` to report.
        abort_code: a rank has ended the job with this exit code and has reported the reason.
        exit_code: the exit code that the run has decided on.
    """

    starter_pid: int | None = None
    locked_on: str | None = None
    is_ready: bool = False
    is_watched: bool = False
    is_stopping: bool = False
    stop_signal: str | None = None
    is_orphaned: bool = False
    last_words: str | None = None
    abort_code: int | None = None
    exit_code: int | None = None


FACTS = frozenset(field.name for field in fields(StartFacts))


def facts_in(content: bytes) -> StartFacts:
    """The facts in complete lines; if a fact occurs twice, the first one counts."""
    stated: dict[str, Any] = {}
    for line in content[: content.rfind(b"\n") + 1].splitlines():
        with contextlib.suppress(ValueError, TypeError):  # empty, or cut off by a full disk
            stated = {**json.loads(line), **stated}
    return StartFacts(**{name: value for name, value in stated.items() if name in FACTS})


class StartFile:
    """The file of one start, for `hpcbal run` and for its ranks.

    If no `hpcbal run` has started this rank, or if it has removed the file, facts are discarded.

    Args:
        directory: the launch directory; None if no `hpcbal run` has started this rank.

    Attributes:
        path: path of the file; None without a directory.
    """

    def __init__(self, directory: Path | None) -> None:
        self.path = None if directory is None else directory / NAME

    @classmethod
    def of_rank(cls) -> StartFile:
        """The file of the start to which this rank belongs."""
        value = env.read(LAUNCH_DIR)
        return cls(None if value is None else Path(value))

    def read(self) -> StartFacts:
        """All facts so far; no facts if the file is gone."""
        if self.path is None:
            return StartFacts()
        try:
            return facts_in(self.path.read_bytes())
        except OSError:
            return StartFacts()

    def add(self, **facts: Any) -> bool:
        """Add facts, named as in `StartFacts`; returns False if the file is gone.

        Raises:
            OutputError: if the line cannot be written.
        """
        if self.path is None:
            return False
        line = f"\n{json.dumps(facts)}\n".encode()  # an incomplete line before it stays a separate line
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
        """Add facts that improve a report, if they can be written; nothing else depends on them."""
        with contextlib.suppress(OutputError):
            self.add(**facts)

    def leave_last_words(self, text: str) -> bool:
        """Let `hpcbal run` report why the ranks end; False if this rank must report it.

        mpirun is ending the job and may kill the rank at any moment. A single write decides: if the line is
        there, `hpcbal run` reports this text, otherwise what it knows itself. Only if the line cannot be
        written (the disk is full) may both the rank and `hpcbal run` report.
        """
        pid = self.read().starter_pid
        if pid is None or process_is_gone(pid):
            return False
        try:
            return self.add(last_words=text)
        except OutputError:
            return False

    def leave_exit_code(self, rank: int, code: int) -> int:
        """Record the exit code of the run; returns the exit code of this process.

        If `hpcbal run` has started mpirun, rank 0 writes the code into the file and all ranks exit with 0,
        because mpirun would report any other code as a crash.
        """
        if rank == SCHEDULER_RANK:
            self.add(exit_code=code)
            note_end(str(code))
        return code if self.path is None else 0


class StarterWatch:
    """Detects that the `hpcbal run` that started the ranks, or its mpirun, is gone.

    Args:
        start: the file of this start; `hpcbal run` removes it when it ends, perhaps before the first check.
    """

    def __init__(self, start: StartFile) -> None:
        self._start = start
        self._pid = start.read().starter_pid
        self._is_over = start.path is None
        self._look_at_s = 0.0

    def lost(self) -> str | None:
        """Return the reason to stop, once, after one of them is gone; otherwise None."""
        now = time.monotonic()
        if self._is_over or now < self._look_at_s:
            return None
        self._look_at_s = now + LOOK_INTERVAL_S
        if self._start.read().is_orphaned:
            reason = "the mpirun that started the ranks is gone"
        elif self._pid is None or process_is_gone(self._pid):
            reason = "the 'hpcbal run' that started the ranks is gone"
        else:
            return None
        self._is_over = True
        return reason

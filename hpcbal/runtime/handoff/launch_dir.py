"""What the ranks and the `hpcbal run` that started them tell each other: a few small files."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from hpcbal import env
from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.errors import OutputError
from hpcbal.runtime.handoff.launch_hold import hold
from hpcbal.telemetry.files.atomic_file import write_atomic
from hpcbal.telemetry.host.processes import process_is_gone

LAUNCH_DIR = "HPCBAL_LAUNCH_DIR"  # the variable that tells the ranks where
READY = "ready"
WATCHED = "watched"  # the run has started: the ranks watch each other from here on
STOPPING = "stopping"  # the run was asked to stop, and does
ABORTED = "aborted"  # a rank ends the job, and has said why
LAST_WORDS = "last-words"  # why the ranks end, for `hpcbal run` to tell
EXIT_CODE = "exit-code"
STARTER = "starter"  # the process id of `hpcbal run`
ORPHANED = "orphaned"  # mpirun is gone and has not taken the ranks along: they shall stop
LOOK_INTERVAL_S = 1.0


def _directory() -> Path | None:
    value = env.read(LAUNCH_DIR)
    return None if value is None else Path(value)


def hold_directory() -> None:
    """Keep the directory, if there is one, from being taken for a left-over while this rank lives."""
    directory = _directory()
    if directory is not None:
        hold(directory)


def tell_ready(rank: int) -> None:
    """From now on a signal stops the ranks cleanly; before, it would have killed them."""
    _leave_word(rank, READY)


def tell_watched(rank: int) -> None:
    """The ranks notice by themselves when one of them is killed; before, only mpirun did."""
    _leave_word(rank, WATCHED)


def tell_stopping(rank: int) -> None:
    """The run stops since it was asked to; what rank 0 prints of it is lost where mpirun itself was ended.

    Only a hint: where it cannot be left, the run stops all the same.
    """
    with contextlib.suppress(OutputError):
        _leave_word(rank, STOPPING)


def tell_aborted() -> None:
    """This rank ends the job and has said why; also only a hint."""
    with contextlib.suppress(OutputError):
        _leave_word(SCHEDULER_RANK, ABORTED)


def leave_last_words(text: str) -> bool:
    """Leave it to `hpcbal run` to tell why the ranks end; False if none here lives to tell it.

    The rank may be killed at any moment, since mpirun is ending the job. So a single rename decides whether
    `hpcbal run` tells this text or, without it, what it knows itself: it tells one, and never both. Only
    where the text cannot be left (the disk is full) both may tell, rather than nobody.
    """
    directory = _directory()
    if directory is None or not directory.is_dir() or _starter_is_gone(directory):
        return False
    try:
        write_atomic(directory / LAST_WORDS, text)
    except OutputError:
        return False
    return True


def _starter_is_gone(directory: Path) -> bool:
    try:
        return process_is_gone(int((directory / STARTER).read_text()))
    except (OSError, ValueError):
        return True


def _leave_word(rank: int, name: str) -> None:
    directory = _directory()
    if directory is not None and rank == SCHEDULER_RANK:
        write_atomic(directory / name, "")


class StarterWatch:
    """Notices that the `hpcbal run` that started the ranks, or its mpirun, is gone: nobody minds them.

    `hpcbal run` removes the directory when it ends, so it may be gone before the first look.
    """

    def __init__(self) -> None:
        self._directory = _directory()
        self._pid: int | None = None
        self._look_at_s = 0.0
        if self._directory is not None:
            with contextlib.suppress(FileNotFoundError):
                self._pid = int((self._directory / STARTER).read_text(encoding="ascii"))

    def lost(self) -> str | None:
        """The reason for stopping, the first time after one of them is gone."""
        now = time.monotonic()
        if self._directory is None or now < self._look_at_s:
            return None
        self._look_at_s = now + LOOK_INTERVAL_S
        if (self._directory / ORPHANED).exists():
            reason = "the mpirun that started the ranks is gone"
        elif self._pid is None or process_is_gone(self._pid):
            reason = "the hpcbal that started the ranks is gone"
        else:
            return None
        self._directory = None
        return reason


def leave_exit_code(rank: int, code: int) -> int:
    """The exit code of this process.

    Where `hpcbal run` has started mpirun, rank 0 leaves the code in a file and all ranks end with 0: mpirun
    would report any other code as a crash.
    """
    directory = _directory()
    if directory is None:
        return code
    if rank == SCHEDULER_RANK and directory.is_dir():
        write_atomic(directory / EXIT_CODE, str(code))
    return 0

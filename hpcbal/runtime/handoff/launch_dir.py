"""The directory of a start: create it, lock it while it is in use, and remove it afterwards.

It holds the start file (`start_file`) and the files of its mpirun. `hpcbal run`, its mpirun and the ranks
lock the start file. The kernel releases a lock when its process ends for any reason, so no process id has to
be trusted.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hpcbal.errors import OutputError
from hpcbal.runtime.handoff.start_file import NAME, StartFile, facts_in
from hpcbal.telemetry.files.atomic_file import inodes, output_error

PREFIX = "hpcbal-"
MAX_FIRST_LINE_BYTES = 4096
SHARED_MEMORY = "/dev/shm"
_LEAST_INODES, _MOST_INODES = 4, 16
"""Of a start, besides those of its ranks: three ranks used 15 for temporary files, and 8 in memory."""


@contextlib.contextmanager
def launch_directory() -> Iterator[tuple[Path, int]]:
    """A new directory in the system's folder for temporary files; removed afterwards.

    Yields:
        The directory, and a descriptor that locks it, also in a process that inherits it. If files cannot be
        locked, `sweep` does not touch the directory.

    Raises:
        OutputError: if nothing can be written there.
    """
    try:
        made = tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)
    except OSError as error:
        raise OutputError(
            f"cannot create a directory for temporary files: {error}; set TMPDIR to a writable folder"
        ) from error
    with made as name:
        path = Path(name) / NAME
        aside = path.with_name(f"{NAME}.tmp")
        try:
            descriptor = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise output_error(path, error) from error
        try:
            locked_on = socket.gethostname() if _lock(descriptor, fcntl.LOCK_SH) else None
            first = {"starter_pid": os.getpid(), "locked_on": locked_on}
            try:
                line = f"{json.dumps(first)}\n".encode()
                if os.write(descriptor, line) != len(line):
                    raise OutputError(f"{path}: cannot write: the file system is full; free space")
                os.rename(aside, path)  # visible only once it is locked
            except OSError as error:
                raise output_error(path, error) from error
            yield Path(name), descriptor
        finally:
            os.close(descriptor)


def shortage_of_inodes(ranks: int) -> tuple[bool, str] | None:
    """Find a file system in which the files of MPI may not have room, or certainly have not.

    Open MPI makes a file for each rank in /dev/shm, besides windows, and some directories and sockets in the
    system's folder for temporary files; if it cannot, it ends with a number.

    Args:
        ranks: how many ranks are to be started on this machine.

    Returns:
        Whether the start must fail, and a sentence; None if there is room.
    """
    for folder, least, remedy in (
        (tempfile.gettempdir(), _LEAST_INODES, "remove files, or set TMPDIR to another folder"),
        (SHARED_MEMORY, ranks, "remove files of jobs that are over"),
    ):
        found, wanted = inodes(folder), 4 * ranks + _MOST_INODES
        if found is not None and found[0] < wanted:
            free, total = found
            return free < least, (
                f"{folder}: no room for the files of MPI: {free} of {total} inodes are free, so few "
                f"files can still be made there, and {ranks} ranks may need {wanted}; {remedy}"
            )
    return None


def hold(start: StartFile) -> None:
    """Lock the launch directory of a start until this process ends, if the directory still exists."""
    if start.path is not None:
        with contextlib.suppress(OSError):  # it cannot be locked, or is gone
            _lock(os.open(start.path, os.O_RDONLY), fcntl.LOCK_SH)


def sweep() -> None:
    """Remove this user's launch directories that no process on this host uses any more.

    Skips symbolic links, directories that others own or may write to, directories that cannot be locked, and
    directories of other hosts, because hosts that share a folder may not see each other's locks.
    """
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        found = [Path(entry.path) for entry in entries if entry.name.startswith(PREFIX)]
        for directory in found:
            with contextlib.suppress(OSError):  # another start may be removing it too
                _remove_unless_held(directory)


def _remove_unless_held(directory: Path) -> None:
    status = directory.lstat()
    is_private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o022
    if not is_private or status.st_uid != os.geteuid():
        return
    descriptor = os.open(directory / NAME, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        is_ours = facts_in(os.read(descriptor, MAX_FIRST_LINE_BYTES)).locked_on == socket.gethostname()
        if is_ours and _lock(descriptor, fcntl.LOCK_EX):
            shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, kind: int) -> bool:
    """Lock a file; False if another process has locked it, or this file system has no locks."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True

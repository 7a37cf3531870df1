"""Tell launch directories that are in use from those that killed starts have left, and remove the latter.

Whoever uses such a directory, the `hpcbal run` that made it, its mpirun and the ranks, holds a lock on a file
in it. The kernel takes the lock back when a process ends, however it ends: no process id has to be believed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "hpcbal-"
HELD = "held"  # the locked file; holds the name of its host


@contextlib.contextmanager
def launch_directory() -> Iterator[tuple[Path, int]]:
    """A new directory in the system's folder for such, and a descriptor that holds it; both gone afterwards.

    A process that inherits the descriptor holds the directory too. Where files cannot be locked, nobody does,
    and `sweep` leaves the directory alone.
    """
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as name:
        directory = Path(name)
        aside = directory / f"{HELD}.tmp"
        descriptor = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, socket.gethostname().encode())
            if _lock(descriptor, fcntl.LOCK_SH):
                os.rename(aside, directory / HELD)  # seen only once it is locked
            yield directory, descriptor
        finally:
            os.close(descriptor)


def hold(directory: Path) -> None:
    """Hold a launch directory until this process ends, if it is still there."""
    with contextlib.suppress(OSError):  # it could not be locked, or is gone
        _lock(os.open(directory / HELD, os.O_RDONLY), fcntl.LOCK_SH)


def sweep() -> None:
    """Remove this user's launch directories that nobody on this host holds any more.

    Left alone: symbolic links, what others own or may write to, what has no lock, and, since a folder may be
    shared by hosts that do not see each other's locks, what another host has made.
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
    descriptor = os.open(directory / HELD, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        is_ours = os.read(descriptor, 1024) == socket.gethostname().encode()
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

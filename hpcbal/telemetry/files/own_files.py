"""Open files of a run: for reading without waiting for a pipe, for writing never through a symbolic link.

A link may point to anybody's file. Names in an output directory are predictable, such as
`status.json.tmp`. Somebody who may write there, or a
careless copy, can put a link to another file under such a name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

NOT_REGULAR = "neither a file nor missing"
NO_FILE = "it is a pipe or a device, not a file; restore or remove it"


def create_new(path: str | os.PathLike[str]) -> BinaryIO:
    """Create a file for writing; a file or link that has this name is removed, not opened.

    Raises:
        OSError: if the file cannot be created, or the name is that of a directory.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return open(path, "xb")


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: if it cannot be read, or is a pipe or a device, which might give no end.
    """
    with open(path, "rb", buffering=0, opener=regular_file) as file:
        return file.readall()


def regular_file(path: str, flags: int) -> int:
    """Open a file: an `opener` for `open`, for files that are read.

    Raises:
        OSError: if the name is that of a directory, a pipe or a device; see `open`.
    """
    # Without O_NONBLOCK, opening a pipe waits for its other end.
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        raise OSError(errno.EINVAL, NO_FILE, os.fspath(path))
    return descriptor


def own_file(path: str, flags: int) -> int:
    """Open an existing file or create it: an `opener` for `open`, for files that are kept over starts.

    Raises:
        OSError: if the name is that of a symbolic link, a directory, a pipe or a device; see `open`.
    """
    # Without O_NONBLOCK, opening a pipe waits for its other end.
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, NOT_REGULAR, os.fspath(path))
    return descriptor


def make_own_directory(path: Path) -> None:
    """Create a directory and its parents; an existing directory is kept.

    Raises:
        OSError: if it cannot be created, or the name is that of a file or a symbolic link.
    """
    path.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))

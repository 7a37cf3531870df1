"""Replace a file as a whole, so that a reader sees either the old or the new content, never a part."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import Any

from hpcbal.errors import OutputError
from hpcbal.telemetry.files.jsonable import to_jsonable
from hpcbal.telemetry.files.own_files import create_new

_ADVICE = {
    errno.ENOSPC: "the file system is full: free space or choose another directory with --output",
    errno.EDQUOT: "your quota is used up: free space or choose another directory with --output",
    errno.EFBIG: "the file is larger than the limit of the file system or of `ulimit -f`",
    errno.EACCES: "no permission to write there: choose another directory with --output",
    errno.EPERM: "no permission to write there: choose another directory with --output",
    errno.EROFS: "the file system is read-only: choose another directory with --output",
    errno.ENOTDIR: "a part of this path is a file, not a directory",
    errno.EISDIR: "a directory has this name: remove it, or give the name of a file",
    errno.EEXIST: "a file has this name: remove it",
    errno.ELOOP: "a symbolic link has this name, and hpcbal does not write through links: remove it",
    errno.EINVAL: "remove it",
}
# Some file systems (older Lustre, FUSE) cannot fsync a directory; then the rename must suffice.
_NO_DIRECTORY_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.ENOSYS}


def output_error(path: str | os.PathLike[str], error: OSError, doing: str = "write") -> OutputError:
    """An `OSError` as an error for the user: one sentence with the path, the reason and what to do."""
    reason = error.strerror or str(error)
    advice = _ADVICE.get(error.errno or 0, "choose another place, or ask its administrator")
    if error.errno == errno.ENOSPC and (found := inodes(path)) is not None and found[0] == 0:
        advice = (
            f"the file system holds at most {found[1]} files and folders, and has them: remove some, or "
            "choose another directory with --output"
        )
    return OutputError(f"{os.fspath(path)}: cannot {doing}: {reason} ({advice})")


def inodes(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """Return how many files can still be made where `path` is or would be, and how many there can be at all.

    None if the file system has no such limit, or if nothing of the path can be seen.
    """
    place = Path(path).absolute()
    for folder in (place, *place.parents):
        try:
            space = os.statvfs(folder)
        except OSError:
            continue
        return (space.f_favail, space.f_files) if space.f_files else None
    return None


def write_atomic(path: str | os.PathLike[str], content: str | bytes, *, durable: bool = False) -> None:
    """Write `content` to a temporary file and rename it to `path`.

    Args:
        path: the file to replace; its directory must exist.
        content: the whole new content; text is written as UTF-8.
        durable: whether to wait until the file and its name are on the disk (takes milliseconds, or longer on
            a parallel file system).

    Raises:
        OutputError: if the file cannot be written; the old content stays.
    """
    target = Path(path)
    aside = target.with_name(f"{target.name}.tmp")
    data = content.encode() if isinstance(content, str) else content
    try:
        with create_new(aside) as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(aside, target)
        if durable:
            sync_directory(target.parent)
    except OSError as error:
        remove_quietly(aside)
        raise output_error(aside if aside.is_dir() else target, error) from error


def write_json_atomic(path: str | os.PathLike[str], obj: Any, *, durable: bool = False) -> None:
    """Write `obj` as JSON (see `to_jsonable`) with `write_atomic`."""
    write_atomic(path, json.dumps(to_jsonable(obj), indent=1, allow_nan=False) + "\n", durable=durable)


def sync_directory(directory: str | os.PathLike[str]) -> None:
    """Wait until the names in `directory` are on the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise
    finally:
        os.close(descriptor)


def remove_quietly(path: str | os.PathLike[str]) -> None:
    """Remove a file; ignores errors, because a file that stays behind does no harm."""
    with contextlib.suppress(OSError):
        os.unlink(path)

"""Replace a file as a whole, also by values as strict JSON; open files of a run without following links.

A link may point to anybody's file. Names in an output directory are predictable, such as
`status.json.tmp`. Somebody who may write there, or a
careless copy, can put a link to another file under such a name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import errno
import json
import math
import os
import stat
from collections.abc import Mapping, Set
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

from hpcbal.errors import OutputError


def to_jsonable(value: Any, field_names: Mapping[str, str] = MappingProxyType({})) -> Any:
    """Convert a value: dataclasses to objects, tuples and sets to lists, arrays to nested lists.

    Paths and other values become text. NaN and infinities become null: strict JSON cannot express them, and
    other languages reject what Python would write.

    Args:
        value: the value to convert.
        field_names: other names for fields of dataclasses; keys of mappings stay as they are.
    """
    if value is None or isinstance(value, bool | str):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, enum.Enum):
        return to_jsonable(value.value, field_names)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field_names.get(field.name, field.name): to_jsonable(getattr(value, field.name), field_names)
            for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(item, field_names) for key, item in value.items()}
    if isinstance(value, Set):
        return sorted((to_jsonable(item, field_names) for item in value), key=str)
    if isinstance(value, list | tuple):
        return [to_jsonable(item, field_names) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):  # numpy scalars and arrays, without importing numpy
        return to_jsonable(value.tolist())
    return str(value)


NOT_REGULAR = "neither a file nor missing"
NO_FILE = "it is a pipe or a device, not a file"


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


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a file.

    Raises:
        OSError: as for `read_file`.
        ValueError: if it is no UTF-8 text.
    """
    return read_file(path).decode()


def cannot_read(path: str | os.PathLike[str], error: OSError) -> str:
    """Return a sentence for people: the path, why it cannot be read, and what to do with what is no file."""
    remedy = "; restore or remove it" if error.strerror == NO_FILE else ""
    return f"{os.fspath(path)}: cannot read: {error.strerror or error}{remedy}"


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


def check_own(path: str | os.PathLike[str], start: bytes, what: str) -> None:
    """Check that what a user names is free to be written: nothing, an empty file, or one that hpcbal wrote.

    Args:
        start: how each file begins that hpcbal writes for this purpose.
        what: what such a file is, for the message.

    Raises:
        OutputError: if it is another file, or none.
    """
    try:
        with open(path, "rb", opener=regular_file) as file:
            found = file.read(len(start))
    except FileNotFoundError:
        return
    except OSError as error:
        if error.strerror == NO_FILE:
            raise OutputError(f"{os.fspath(path)}: {NO_FILE}; give the name of a file") from None
        raise output_error(path, error) from error
    if found not in (b"", start):
        raise OutputError(
            f"{os.fspath(path)}: exists, and is no {what} of hpcbal; choose another name, or remove it"
        )


def make_own_directory(path: Path) -> None:
    """Create a directory and its parents; an existing directory is kept.

    Raises:
        OSError: if it cannot be created, or the name is that of a file or a symbolic link.
    """
    path.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))


def make_inside(path: Path, num_parents: int = 1) -> None:
    """Create a directory, and so many of its parents; those above must be there.

    So a run whose directory somebody has removed does not make it again, half empty.

    Raises:
        OSError: if it cannot be created, or the directories above are not there.
    """
    for each in (*reversed(path.parents[:num_parents]), path):
        each.mkdir(exist_ok=True)


_ADVICE = {
    errno.ENOENT: "a directory above it is not there; perhaps somebody has removed it",
    errno.ENOSPC: "the file system is full: free space, or choose another place (of a run: --output)",
    errno.EDQUOT: "your quota is used up: free space, or choose another place (of a run: --output)",
    errno.EFBIG: "the file is larger than the limit of the file system or of `ulimit -f`",
    errno.EACCES: "no permission to write there: choose another place (of a run: --output)",
    errno.EPERM: "no permission to write there: choose another place (of a run: --output)",
    errno.EROFS: "the file system is read-only: choose another place (of a run: --output)",
    errno.ENOTDIR: "a part of this path is a file, not a directory",
    errno.EISDIR: "a directory has this name: remove it, or give the name of a file",
    errno.EEXIST: "a file has this name: remove it",
    errno.ELOOP: "a symbolic link has this name, and hpcbal does not write through links: remove it",
    errno.EINVAL: "restore or remove it",
}
# Some file systems (older Lustre, FUSE) cannot fsync a directory; then the rename must suffice.
_NO_DIRECTORY_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.ENOSYS}


def output_error(path: str | os.PathLike[str], error: OSError, doing: str = "write") -> OutputError:
    """An `OSError` as an error for the user: one sentence with the path, the reason and what to do."""
    reason = error.strerror or str(error)
    advice = _ADVICE.get(error.errno or 0, "choose another place, or ask its administrator")
    if doing.startswith("read") and error.errno in (errno.EACCES, errno.EPERM):
        advice = "no permission to read it: ask its owner"
    if error.errno == errno.ENOSPC and (found := inodes(path)) is not None and found[0] == 0:
        advice = (
            f"the file system holds at most {found[1]} files and folders, and has them: remove some, or "
            "choose another place (of a run: --output)"
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

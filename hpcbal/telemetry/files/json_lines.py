"""Values as strict JSON, one object per line; a kill may leave an incomplete last line."""

from __future__ import annotations

import json
import logging
import os
import time
from datetime import UTC, datetime
from typing import Any, BinaryIO

from hpcbal.telemetry.files.atomic_file import own_file, read_file, to_jsonable

log = logging.getLogger(__name__)


def utc_text(unix_s: float | None = None) -> str:
    """`unix_s` (default: now) as text, like 2025-01-31T12:00:00.000Z."""
    moment = datetime.fromtimestamp(time.time() if unix_s is None else unix_s, tz=UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def unix_seconds(text: str) -> float:
    """The inverse of `utc_text`.

    Raises:
        ValueError: if `text` is not a time in that format.
    """
    return datetime.fromisoformat(text).timestamp()


def duration_text(seconds: float) -> str:
    """A duration for users: 0:00:41, 12:03:07."""
    whole = max(0, round(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


_BLOCK_BYTES = 1 << 16


def encode_line(obj: Any) -> bytes:
    """`obj` as one line of strict JSON."""
    return json.dumps(to_jsonable(obj), separators=(", ", ": "), allow_nan=False).encode() + b"\n"


def read_json_lines(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """All complete lines of the file; a missing file has no lines.

    An incomplete line is skipped with a warning. An incomplete last line causes no warning: it may be in the
    middle of being written, and `open_to_append` logs when it removes it. No proper part of a JSON object is
    valid JSON, so an incomplete line is never mistaken for a complete one.

    Raises:
        OSError: if the file exists but cannot be read.
    """
    try:
        data = read_file(path)
    except FileNotFoundError:
        return []
    objects = []
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip(b"\0 \r"):
            continue
        value = object_of(line)
        if value is not None:
            objects.append(value)
        else:
            level = logging.WARNING if number < len(lines) else logging.DEBUG
            log.log(level, "%s:%d: skipped, not a whole JSON object (an interrupted write?)", path, number)
    return objects


def open_to_append(path: str | os.PathLike[str]) -> BinaryIO:
    """Open for appending, unbuffered.

    An incomplete last line is removed with a warning; a complete last line gets its missing line end. Only
    the file's single writer may call this.

    Raises:
        OSError: if the file cannot be opened or written.
    """
    file = open(path, "a+b", buffering=0, opener=own_file)  # noqa: SIM115 - the caller closes it
    try:
        _mend_end(file, os.fspath(path))
    except BaseException:
        file.close()
        raise
    return file


def _mend_end(file: BinaryIO, name: str) -> None:
    """Make sure that the file is empty or ends with a line end."""
    size = file.seek(0, os.SEEK_END)
    start, end = size, b""  # the bytes after the last line end
    while start and b"\n" not in end:
        length = min(start, _BLOCK_BYTES)
        start = file.seek(start - length)
        end = file.read(length) + end
    torn = end[end.rfind(b"\n") + 1 :]
    if not torn:
        return
    if object_of(torn) is not None:
        write_all(file, b"\n")
        return
    file.truncate(size - len(torn))
    log.warning("%s: removed an incomplete line at the end (an interrupted write)", name)


def object_of(line: bytes) -> dict[str, Any] | None:
    """The object in a line; None if the line is incomplete or no JSON object."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def write_all(file: BinaryIO, data: bytes) -> None:
    """Write all of `data` to an unbuffered file, which may accept only a part at a time.

    Raises:
        OSError: if the disk is full or the file cannot be written.
    """
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]

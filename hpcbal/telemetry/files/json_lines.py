"""Append-only files of one JSON object per line, which a kill or a full disk may tear at the end."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any, BinaryIO

from hpcbal.telemetry.files.jsonable import to_jsonable

log = logging.getLogger(__name__)

_BLOCK_BYTES = 1 << 16


def encode_line(obj: Any) -> bytes:
    """`obj` as one line of strict JSON."""
    return json.dumps(to_jsonable(obj), separators=(", ", ": "), allow_nan=False).encode() + b"\n"


def read_json_lines(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """All whole lines of the file; no file reads as no lines.

    A torn line is left out, and logged unless it is the last one: that may be about to be written, and
    `open_to_append` tells of it when it removes it. No part of an object but all of it is valid JSON, so a
    torn line is never mistaken for a whole one.

    Raises:
        OSError: if the file is there but cannot be read.
    """
    return [value for _, value in read_numbered_lines(path)]


def read_numbered_lines(path: str | os.PathLike[str]) -> list[tuple[int, dict[str, Any]]]:
    """The lines that `read_json_lines` returns, each with its number, from 1 on."""
    objects = []
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return []
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip(b"\0 \r"):
            continue
        value = _object_of(line)
        if value is not None:
            objects.append((number, value))
        else:
            level = logging.WARNING if number < len(lines) else logging.DEBUG
            log.log(level, "%s:%d: not a whole line (an interrupted write), left out", path, number)
    return objects


def open_to_append(path: str | os.PathLike[str]) -> BinaryIO:
    """Open for appending (unbuffered); a torn last line is removed and logged, a whole one gets its line end.

    For the only writer of the file.

    Raises:
        OSError: if the file cannot be opened or written.
    """
    file = open(path, "a+b", buffering=0)  # noqa: SIM115 - the caller closes it
    try:
        _mend_end(file, os.fspath(path))
    except BaseException:
        file.close()
        raise
    return file


def _mend_end(file: BinaryIO, name: str) -> None:
    """Make the file end with a line end, or be empty."""
    size = file.seek(0, os.SEEK_END)
    start, end = size, b""  # of what stands after the last line end
    while start and b"\n" not in end:
        length = min(start, _BLOCK_BYTES)
        start = file.seek(start - length)
        end = file.read(length) + end
    torn = end[end.rfind(b"\n") + 1 :]
    if not torn:
        return
    if _object_of(torn) is not None:
        write_all(file, b"\n")
        return
    file.truncate(size - len(torn))
    log.warning("%s: not a whole line at the end (an interrupted write), removed", name)


def _object_of(line: bytes) -> dict[str, Any] | None:
    """The object that the line holds; None if it is torn."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def write_all(file: BinaryIO, data: bytes) -> None:
    """Write all of `data` to an unbuffered file, which may take only a part at a time.

    Raises:
        OSError: if the disk is full or the file broken.
    """
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]

"""Append-only files of one JSON object per line, which a kill may tear at the end."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any, BinaryIO

from hpcbal.telemetry.jsonable import to_jsonable

log = logging.getLogger(__name__)


def encode_line(obj: Any) -> bytes:
    """`obj` as one line of strict JSON."""
    return json.dumps(to_jsonable(obj), separators=(", ", ": "), allow_nan=False).encode() + b"\n"


def read_json_lines(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """All whole lines of the file; no file reads as no lines.

    A torn line (the last one, or one after which a later start went on) is left out and logged. No part of an
    object but all of it is valid JSON, so a torn line is never mistaken for a whole one.

    Raises:
        OSError: if the file is there but cannot be read.
    """
    objects = []
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip(b"\0 \r"):
            continue
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if isinstance(value, dict):
            objects.append(value)
        else:
            log.warning("%s:%d: not a whole line (an interrupted write), left out", os.fspath(path), number)
    return objects


def open_to_append(path: str | os.PathLike[str]) -> BinaryIO:
    """Open for appending (unbuffered), on a new line even if the last one is torn.

    Raises:
        OSError: if the file cannot be opened or written.
    """
    file = open(path, "a+b", buffering=0)  # noqa: SIM115 - the caller closes it
    size = file.seek(0, os.SEEK_END)
    if size:
        file.seek(size - 1)
        if file.read(1) != b"\n":
            file.write(b"\n")
    return file


def write_all(file: BinaryIO, data: bytes) -> None:
    """Write all of `data` to an unbuffered file, which may take only a part at a time.

    Raises:
        OSError: if the disk is full or the file broken.
    """
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]

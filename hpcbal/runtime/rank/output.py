"""Keep what code of the user prints in a rank in a log of limited size, and forward it while it is little.

A dataset may print for each of a billion samples. Logs and disks are shared with others, and launchers may
keep in memory what nobody reads. This covers what Python prints, not what libraries in C do (`clean_output`).
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcbal.runtime.handoff.clean_output import NAMES, Allowance
from hpcbal.telemetry.files.atomic_file import own_file

MOST_BYTES = 4 << 20
"""Size of the log, and of the part before it, which stays."""
BURST_BYTES, RATE_BYTES_PER_S = 1 << 20, 4 << 10


@contextlib.contextmanager
def kept_output(path: Path, rank: int) -> Iterator[None]:
    """Keep what this rank prints while the block runs; what hpcbal itself prints goes another way.

    Args:
        path: the log; it is made when something is printed.
        rank: of this process.
    """
    log, before = OutputLog(path, MOST_BYTES), [getattr(sys, name) for name in NAMES]
    dropped = f"hpcbal: rank {rank} prints too much: %d bytes are left out here; the last ones are in {path}"
    kept = [_KeptStream(log, number, dropped) for number in (1, 2)]
    texts = [_text_stream(stream, old.encoding) for stream, old in zip(kept, before, strict=True)]
    for name, text in zip(NAMES, texts, strict=True):
        setattr(sys, name, text)
    try:
        yield
    finally:
        for name, text, old in zip(NAMES, texts, before, strict=True):
            for stream in (getattr(sys, name), text):  # the first one may be the user's, and write to ours
                with contextlib.suppress(Exception):  # it has been closed, or is no stream
                    stream.flush()
            setattr(sys, name, old)
        for stream in kept:
            stream.finish()


def _text_stream(stream: io.RawIOBase, encoding: str) -> io.TextIOWrapper:
    # Lines are passed on whole, unlike the arguments of one `print` in a stream without buffer.
    return io.TextIOWrapper(
        stream,  # type: ignore[arg-type]  # a raw stream will do, as in python -u
        encoding=encoding,
        errors="backslashreplace",
        line_buffering=True,
    )


class OutputLog:
    """A log that holds the last bytes of what is written to it, at least `most_bytes` of them if there are.

    It holds no descriptor, which code of users might close, so that the next file would get its number.

    Args:
        path: the log; what was in it before its last piece is beside it, as `NAME.1`.
        most_bytes: size of such a piece.
    """

    def __init__(self, path: Path, most_bytes: int) -> None:
        self._path, self._most_bytes = path, most_bytes
        self._old = path.with_name(f"{path.name}.1")
        self._turning = threading.Lock()

    def write(self, text: bytes) -> None:
        """Append to the log; a full disk does not disturb whoever prints."""
        with contextlib.suppress(OSError):
            # Never waited for: a fork of the user's may copy the lock while another thread holds it.
            if self._turning.acquire(blocking=False):
                try:
                    self._make_room(len(text))
                finally:
                    self._turning.release()
            descriptor = own_file(str(self._path), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            try:
                os.write(descriptor, text)
            finally:
                os.close(descriptor)

    def _make_room(self, num_bytes: int) -> None:
        """Begin a new piece if this one is full."""
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_size + num_bytes > self._most_bytes:
                os.replace(self._path, self._old)


class _KeptStream(io.RawIOBase):
    """Writes to the log, and to a descriptor as far as an `Allowance` lets it."""

    def __init__(self, log: OutputLog, descriptor: int, dropped: str) -> None:
        self._log, self._descriptor = log, descriptor
        self._allowance = Allowance(dropped, BURST_BYTES, RATE_BYTES_PER_S, last_bytes=0)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, text: Any, /) -> int:
        chunk = bytes(text)
        self._log.write(chunk)
        self._pass_on(self._allowance.take(chunk, time.monotonic()))
        return len(chunk)

    def finish(self) -> None:
        """Say how much was left out at the end."""
        self._pass_on(self._allowance.finish())

    def _pass_on(self, rest: bytes) -> None:
        with contextlib.suppress(OSError):  # nobody reads it
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]

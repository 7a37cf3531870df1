"""Forward what mpirun prints, without the control characters that a terminal would obey.

Models and datasets print what they like, and Open MPI ends some of its messages with a NUL, so that a log
counts as binary: grep and many viewers do not show it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable

_CHUNK_BYTES = 1 << 16
_PIPE_BYTES = 1 << 20
_MOST_WAITING_BYTES = 8 << 20  # in memory, for a slow reader
_MOST_LINES, _MOST_UNLIKE_BYTES = 1000, 4096
_BURST_BYTES, _RATE_BYTES_PER_S = 8 << 20, 64 << 10
_OWN = re.compile(rb"(?:\[\d+:\d\d:\d\d\]|hpcbal:) [^\n]*\n")
"""A line of hpcbal itself; other ranks may have printed something in front of it."""
_UNFINISHED = re.compile(rb"(?:\x1b(?:\[[\d;]{0,32})?|\xc2|\r)\Z")
"""Bytes at the end of a chunk that mean something else if others follow."""
_UNSAFE = re.compile(
    rb"(?P<color>\x1b\[[\d;]{0,32}m)"
    rb"|(?P<end>\r\n?)"
    rb"|\xc2(?P<c1>[\x80-\x9f])"  # a control character of two bytes in UTF-8
    rb"|(?P<c0>[\0-\x08\x0b-\x1f\x7f])"
)


class Cleaner:
    """Makes the control characters in a stream of bytes visible, as escapes such as `\\x1b`.

    Ends of lines and tabs stay, NUL bytes go, and a carriage return begins a new line.

    Args:
        keeps_colors: whether the sequences that set colors stay, too.
    """

    def __init__(self, *, keeps_colors: bool) -> None:
        self._keeps_colors = keeps_colors
        self._held = b""

    def clean(self, chunk: bytes) -> bytes:
        """The next bytes, cleaned; an unfinished sequence at their end waits for the next ones."""
        chunk = self._held + chunk
        unfinished = _UNFINISHED.search(chunk)
        self._held = unfinished.group() if unfinished else b""
        return _UNSAFE.sub(self._safe, chunk[: len(chunk) - len(self._held)])

    def finish(self) -> bytes:
        """Return the bytes that still wait at the end."""
        held, self._held = self._held, b""
        return _UNSAFE.sub(self._safe, held)

    def _safe(self, found: re.Match[bytes]) -> bytes:
        if found["color"]:
            return found["color"] if self._keeps_colors else found["color"].replace(b"\x1b", b"\\x1b")
        if found["end"]:
            return b"\n"
        control = found["c1"] or found["c0"]
        return b"" if control == b"\0" else b"\\x%02x" % control[0]


class Allowance:
    """How much output is forwarded: a burst, and then a steady rate.

    Code of a user, or a library in trouble, may print without an end; logs and disks are shared with others.

    Args:
        burst_bytes: bytes that pass at once.
        rate_bytes_per_s: bytes per second after that.
    """

    def __init__(self, burst_bytes: int = _BURST_BYTES, rate_bytes_per_s: int = _RATE_BYTES_PER_S) -> None:
        self._burst, self._rate = burst_bytes, rate_bytes_per_s
        self._left = float(burst_bytes)
        self._at_s = 0.0
        self._dropped = 0
        self._held = b""  # the beginning of a line, in a flood
        self._seen: set[bytes] = set()

    def take(self, chunk: bytes, now_s: float, *, has_room: bool = True) -> bytes:
        """Return what passes of a chunk: all of it, with a line about what was dropped before.

        In a flood only lines of hpcbal itself pass, and lines that are unlike the others if they are few.
        """
        self._left = min(self._burst, self._left + self._rate * (now_s - self._at_s))
        self._at_s = now_s
        chunk, self._held = self._held + chunk, b""
        if not has_room:
            self._dropped += len(chunk)
            return b""
        if len(chunk) > self._left:
            whole = chunk.rfind(b"\n") + 1
            if len(chunk) - whole <= _MOST_UNLIKE_BYTES:
                chunk, self._held = chunk[:whole], chunk[whole:]
            kept = self._unlike(chunk)
            self._dropped += len(chunk) - len(kept)
            return kept
        self._left -= len(chunk)
        return self.finish() + chunk

    def _unlike(self, chunk: bytes) -> bytes:
        """Return the lines of a flood that are unlike those before; if they are many, those of hpcbal."""
        lines = chunk.splitlines(keepends=True)
        new = b"".join(line for line in dict.fromkeys(lines) if line not in self._seen)
        if len(self._seen) > _MOST_LINES:
            self._seen.clear()
        self._seen.update(lines[:_MOST_LINES])
        return new if len(new) <= _MOST_UNLIKE_BYTES else b"".join(_OWN.findall(new))[:_MOST_UNLIKE_BYTES]

    def finish(self) -> bytes:
        """Return a line about what was dropped since the last one; empty if nothing was."""
        dropped, self._dropped = self._dropped, 0
        held, self._held = self._held, b""
        if not dropped:
            return held
        text = b"\nhpcbal: the ranks print too much: %d bytes of their output were dropped here\n" % dropped
        return text + held


class CleanOutput:
    """A pipe for what mpirun writes to a descriptor, and threads that clean and forward it.

    mpirun inherits the reading end too. So if `hpcbal run` is killed, mpirun gets no SIGPIPE, after some of
    which it would abort the ranks instead of letting them stop cleanly. The pipe is large, because nobody
    reads it then.

    mpirun keeps in memory what is not read, without a bound. So one thread always reads, and what the other
    one cannot write is dropped with a count, as is what exceeds an `Allowance`.

    Args:
        target: descriptor to forward to, such as 1 or 2.

    Attributes:
        reading_end, writing_end: descriptors of the pipe, for mpirun.
        has_begun: whether anything was forwarded.
    """

    def __init__(self, target: int) -> None:
        self.reading_end, self.writing_end = os.pipe()
        with contextlib.suppress(OSError):  # a system may allow less
            fcntl.fcntl(self.writing_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self.has_begun = False
        self._target = target
        self._waiting: deque[bytes] = deque()
        self._num_waiting = 0  # bytes that were read and not yet written
        self._is_over = False
        self._changed = threading.Condition()
        self._writer: threading.Thread | None = None

    def __enter__(self) -> CleanOutput:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is None:
            os.close(self.reading_end)
            os.close(self.writing_end)

    def forward(self) -> None:
        """Start forwarding; call this once mpirun has the pipe."""
        os.close(self.writing_end)
        self._writer = threading.Thread(target=self._write, name="output-of-mpirun", daemon=True)
        self._writer.start()
        threading.Thread(target=self._read, name="input-from-mpirun", daemon=True).start()

    def drain(self, timeout_s: float, is_hurried: Callable[[], bool] = lambda: False) -> None:
        """Wait until everything is forwarded, but not for processes that outlive mpirun and hold the pipe.

        It waits longer than `timeout_s` while the reader of the forwarded output is slow, unless it
        `is_hurried`.
        """
        while self._writer is not None and self._writer.is_alive():
            self._writer.join(timeout_s)
            if not self._num_waiting or is_hurried():
                break

    def _read(self) -> None:
        cleaner = Cleaner(keeps_colors=os.isatty(self._target))
        allowance = Allowance()
        while chunk := os.read(self.reading_end, _CHUNK_BYTES):
            has_room = self._num_waiting < _MOST_WAITING_BYTES
            self._keep(allowance.take(cleaner.clean(chunk), time.monotonic(), has_room=has_room))
        self._keep(cleaner.finish() + allowance.finish())
        os.close(self.reading_end)
        with self._changed:
            self._is_over = True
            self._changed.notify()

    def _keep(self, text: bytes) -> None:
        if not text:
            return
        self.has_begun = True
        with self._changed:
            self._waiting.append(text)
            self._num_waiting += len(text)
            self._changed.notify()

    def _write(self) -> None:
        is_read = True  # whether anybody still reads what is forwarded; if not, it is lost
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_over)
                if not self._waiting:
                    return
                text = rest = self._waiting.popleft()
            try:
                while rest and is_read:
                    rest = rest[os.write(self._target, rest) :]
            except OSError:
                is_read = False
            with self._changed:
                self._num_waiting -= len(text)

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

_CHUNK_BYTES = 1 << 16
_PIPE_BYTES = 1 << 20
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
        """What was still waiting at the end."""
        held, self._held = self._held, b""
        return _UNSAFE.sub(self._safe, held)

    def _safe(self, found: re.Match[bytes]) -> bytes:
        if found["color"]:
            return found["color"] if self._keeps_colors else found["color"].replace(b"\x1b", b"\\x1b")
        if found["end"]:
            return b"\n"
        control = found["c1"] or found["c0"]
        return b"" if control == b"\0" else b"\\x%02x" % control[0]


class CleanOutput:
    """A pipe for what mpirun writes to a descriptor, and a thread that cleans and forwards it.

    mpirun inherits the reading end too. So if `hpcbal run` is killed, mpirun gets no SIGPIPE, after some of
    which it would abort the ranks instead of letting them stop cleanly. The pipe is large, because nobody
    reads it then.

    Args:
        target: descriptor to forward to, such as 1 or 2.

    Attributes:
        reading_end, writing_end: descriptors of the pipe, for mpirun.
    """

    def __init__(self, target: int) -> None:
        self.reading_end, self.writing_end = os.pipe()
        with contextlib.suppress(OSError):  # a system may allow less
            fcntl.fcntl(self.writing_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._target = target
        self._is_writing = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> CleanOutput:
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is None:
            os.close(self.reading_end)
            os.close(self.writing_end)

    def forward(self) -> None:
        """Start forwarding; call this once mpirun has the pipe."""
        os.close(self.writing_end)
        self._thread = threading.Thread(target=self._forward, name="output-of-mpirun", daemon=True)
        self._thread.start()

    def drain(self, timeout_s: float) -> None:
        """Wait until everything is forwarded, but not for processes that outlive mpirun and hold the pipe.

        It waits longer than `timeout_s` while the reader of the forwarded output is slow.
        """
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(timeout_s)
            if not self._is_writing:
                break

    def _forward(self) -> None:
        cleaner = Cleaner(keeps_colors=os.isatty(self._target))
        is_read = True
        while chunk := os.read(self.reading_end, _CHUNK_BYTES):
            is_read = is_read and self._write(cleaner.clean(chunk))
        if is_read:
            self._write(cleaner.finish())
        os.close(self.reading_end)

    def _write(self, rest: bytes) -> bool:
        """Whether anybody still reads what is forwarded; if not, mpirun must not be blocked by that."""
        self._is_writing = True
        try:
            while rest:
                rest = rest[os.write(self._target, rest) :]
        except OSError:
            return False
        finally:
            self._is_writing = False
        return True

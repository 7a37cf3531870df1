"""Forward what ranks print, without control characters, and apart from it what hpcbal itself prints.

Models and datasets print what they like, and Open MPI ends some of its messages with a NUL, so that a log
counts as binary: grep and many viewers do not show it.

Code of users, libraries and MPI may print without an end, and mpirun keeps in memory what it cannot forward
at once, without a bound. So ranks write into a pipe of `hpcbal run`, which has a name in the launch
directory, and it passes on a part of that. What hpcbal says takes another way: a file for each stream in that
directory. Ranks that another launcher has started write to their standard streams.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import io
import itertools
import os
import re
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcbal.processes import speak_by
from hpcbal.telemetry.files.atomic_file import output_error

NAMES = ("stdout", "stderr")
_MOST_CHUNKS = 16


def take_own_way(directory: Path | None) -> None:
    """Let what this rank prints for hpcbal take a way of its own, whatever `sys.stdout` becomes later.

    Args:
        directory: the launch directory; None if another launcher has started this rank.
    """
    for number, name in enumerate(NAMES, 1):
        stream = getattr(sys, name)
        if directory is not None:
            _pass_by(_pipe_beside(directory / name), number)
            file = AppendedFile(directory / name, otherwise=number)
            stream = io.TextIOWrapper(
                file,  # type: ignore[arg-type]  # a raw stream will do, as in python -u
                encoding=stream.encoding,
                errors="backslashreplace",
                write_through=True,
            )
        speak_by(name, stream)


def _pipe_beside(own: Path) -> Path:
    return own.with_name(f"{own.name}.pipe")


def _pass_by(pipe: Path, number: int) -> None:
    """Let a descriptor of this process lead into a pipe, past mpirun."""
    with contextlib.suppress(OSError):  # there is no such pipe, or nobody to read it: mpirun's way stays
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        os.set_blocking(descriptor, True)
        os.dup2(descriptor, number)
        os.close(descriptor)
    if number == 1:  # C holds back what goes into a pipe, and loses it in a process that is ended
        c = ctypes.CDLL(None)
        c.setvbuf(ctypes.c_void_p.in_dll(c, "stdout"), None, _LINE_BUFFERED, ctypes.c_size_t(0))


def discard_output(directory: Path) -> None:
    """Read what all ranks print, and drop it, because `hpcbal run` is gone: who prints would wait for ever.

    Args:
        directory: the launch directory.
    """
    for name in NAMES:
        threading.Thread(target=_discard, args=(_pipe_beside(directory / name),), daemon=True).start()


def _discard(pipe: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(descriptor, True)
        while os.read(descriptor, _CHUNK_BYTES):
            pass
        os.close(descriptor)


class AppendedFile(io.RawIOBase):
    """A file to which each write is appended at once.

    It holds no descriptor, which code of users might close, so that the next file would get its number.

    Args:
        path: the file, made by `hpcbal run`.
        otherwise: the descriptor that gets what cannot be written there.
    """

    def __init__(self, path: Path, otherwise: int) -> None:
        self._path, self._otherwise = path, otherwise

    def writable(self) -> bool:
        return True

    def write(self, text: Any, /) -> int:
        rest = bytes(text)
        num_bytes = len(rest)
        with contextlib.suppress(OSError):  # the disk is full, or `hpcbal run` has removed it
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND)
            try:
                rest = rest[os.write(descriptor, rest) :]
            finally:
                os.close(descriptor)
        while rest:
            rest = rest[os.write(self._otherwise, rest) :]
        return num_bytes


class NewLines:
    """Reads what ranks append to such a file, which it creates.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CREAT, 0o600)
        self._rest = b""  # the beginning of a line

    def read(self, *, is_last: bool) -> bytes:
        """Return whole lines that were appended since the last call; not all of them if they are many.

        Args:
            is_last: whether all is wanted, with what follows the last whole line.
        """
        chunks = iter(lambda: os.read(self._descriptor, _CHUNK_BYTES), b"")
        text = self._rest + b"".join(itertools.islice(chunks, None if is_last else _MOST_CHUNKS))
        end = len(text) if is_last else text.rfind(b"\n") + 1
        self._rest = text[end:]
        return text[:end]

    def close(self) -> None:
        """Read no more."""
        os.close(self._descriptor)


_LINE_BUFFERED = 1  # _IOLBF of C
_CHUNK_BYTES = 1 << 16
_PIPE_BYTES = 1 << 20
_MOST_WAITING_BYTES = 8 << 20  # in memory, for a slow reader
_BURST_BYTES, _RATE_BYTES_PER_S, _LAST_BYTES = 8 << 20, 64 << 10, 4096
_LOOK_S = 0.1
PAUSE_S = 10
_DROPPED = "hpcbal: the ranks print too much: %d bytes of their output were dropped here"
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
    """How much output passes: a burst, and then a steady rate.

    Code of a user, or a library in trouble, may print without an end; logs and disks are shared with others.
    What passes later comes in pieces of `PAUSE_S`, so that lines which belong together often stay together.

    Args:
        dropped: a line for people about output that has not passed; `%d` is the number of its bytes.
        burst_bytes: bytes that pass at once.
        rate_bytes_per_s: bytes per second after that.
        last_bytes: how much passes of the end of what was dropped: perhaps why it has ended.
    """

    def __init__(
        self, dropped: str, burst_bytes: int, rate_bytes_per_s: int, last_bytes: int = _LAST_BYTES
    ) -> None:
        self._text, self._last_bytes = dropped, last_bytes
        self._burst, self._rate = burst_bytes, rate_bytes_per_s
        self._resumes = min(burst_bytes, PAUSE_S * rate_bytes_per_s)
        self._left = float(burst_bytes)
        self._at_s = 0.0
        self._num_dropped = 0
        self._last = b""

    def take(self, chunk: bytes, now_s: float, *, has_room: bool = True) -> bytes:
        """Return what passes of a chunk: nothing, or all of it behind a line about what was dropped."""
        self._left = min(self._burst, self._left + self._rate * (now_s - self._at_s))
        self._at_s = now_s
        needed = max(len(chunk), self._resumes if self._num_dropped else 0)
        if not has_room or needed > self._left:
            self._num_dropped += len(chunk)
            self._last = (self._last + chunk)[-self._last_bytes :] if self._last_bytes else b""
            return b""
        self._left -= len(chunk)
        return self.finish() + chunk

    def finish(self) -> bytes:
        """Return a line about what was dropped since the last one, and its end; empty if nothing was."""
        num_dropped, self._num_dropped = self._num_dropped - len(self._last), 0
        last, self._last = self._last, b""
        if num_dropped <= 0:
            return last
        return b"\n" + self._text.encode() % num_dropped + b"\n" + last


class CleanOutput:
    """A pipe for what mpirun and ranks write to a descriptor, and threads that clean and forward it.

    mpirun inherits the reading end too. So if `hpcbal run` is killed, mpirun gets no SIGPIPE, after some of
    which it would abort the ranks instead of letting them stop cleanly. The pipe is large, because nobody
    reads it then.

    Nobody who prints should wait long. So one thread always reads, and what the other one cannot write is
    dropped with a count, as is what exceeds an `Allowance`. What hpcbal itself prints in ranks comes by a
    file of its own (`take_own_way`), and all of it is forwarded.

    Args:
        target: descriptor to forward to, such as 1 or 2.
        own: the file. The pipe has a name beside it.

    Attributes:
        reading_end, writing_end: descriptors of the pipe, for mpirun.
        has_begun: whether anything was forwarded.
        is_over: whether no process can write to it any more.
    """

    def __init__(self, target: int, own: Path) -> None:
        self._own = NewLines(own)
        pipe = _pipe_beside(own)
        try:
            os.mkfifo(pipe, 0o600)
        except OSError:  # not on this file system: ranks print through mpirun
            self.reading_end, self.writing_end = os.pipe()
        else:
            self.reading_end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # does not wait for the other end
            self.writing_end = os.open(pipe, os.O_WRONLY)
            os.set_blocking(self.reading_end, True)
        with contextlib.suppress(OSError):  # a system may allow less
            fcntl.fcntl(self.writing_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self.has_begun = False
        self._is_in_line = False
        self._target = target
        self._waiting: deque[bytes] = deque()
        self._num_waiting = 0  # bytes that were read and not yet written
        self.is_over = False
        self._changed = threading.Condition()
        self._writer: threading.Thread | None = None

    def close(self) -> None:
        """Close the pipe, unless it is in use."""
        if self._writer is None:
            self._own.close()
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
        allowance = Allowance(_DROPPED, _BURST_BYTES, _RATE_BYTES_PER_S)
        has_ended = False
        while not has_ended:
            if select.select([self.reading_end], [], [], _LOOK_S)[0]:
                chunk = os.read(self.reading_end, _CHUNK_BYTES)
                has_ended = not chunk
                has_room = self._num_waiting < _MOST_WAITING_BYTES
                passed = allowance.take(chunk, time.monotonic(), has_room=has_room)
                self._keep(cleaner.clean(passed))  # not what is dropped: cleaning is slower than reading
            if has_ended:
                self._keep(cleaner.clean(allowance.finish()) + cleaner.finish())
            if has_ended or self._num_waiting < _MOST_WAITING_BYTES:  # it waits on disk
                self._keep(self._own.read(is_last=has_ended), is_own=True)
        os.close(self.reading_end)
        self._own.close()
        with self._changed:
            self.is_over = True
            self._changed.notify()

    def _keep(self, text: bytes, *, is_own: bool = False) -> None:
        if not text:
            return
        if is_own and self._is_in_line:
            text = b"\n" + text
        self._is_in_line = not text.endswith(b"\n")
        self.has_begun = True
        with self._changed:
            self._waiting.append(text)
            self._num_waiting += len(text)
            self._changed.notify()

    def _write(self) -> None:
        is_read = True  # whether anybody still reads what is forwarded; if not, it is lost
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self.is_over)
                if not self._waiting:
                    return
                text = rest = self._waiting.popleft()
            while rest and is_read:
                try:
                    rest = rest[os.write(self._target, rest) :]
                except BlockingIOError:  # another program that shares it has made it so, and it is full
                    select.select([], [self._target], [], _LOOK_S)
                except OSError:
                    is_read = False
            with self._changed:
                self._num_waiting -= len(text)


class Outputs:
    """Both streams of an mpirun.

    Args:
        directory: the launch directory.
        is_hurried: whether nobody is to wait for a slow reader.

    Raises:
        OutputError: if their files cannot be created.
    """

    def __init__(self, directory: Path, is_hurried: Callable[[], bool] = lambda: False) -> None:
        self._is_hurried = is_hurried
        try:
            self.streams = [CleanOutput(target, directory / name) for target, name in enumerate(NAMES, 1)]
        except OSError as error:
            raise output_error(directory, error, "create files for the output of ranks") from error

    def __enter__(self) -> Outputs:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self.streams:
            stream.close()

    def forward(self) -> None:
        """Start forwarding; call this once mpirun has the pipes."""
        for stream in self.streams:
            stream.forward()

    def drain(self, timeout_s: float) -> None:
        """Wait until everything is forwarded, for all streams together; see `CleanOutput.drain`."""
        end_s = time.monotonic() + timeout_s
        for stream in self.streams:
            stream.drain(max(_LOOK_S, end_s - time.monotonic()), self._is_hurried)

    @property
    def has_begun(self) -> bool:
        """Whether anything was forwarded."""
        return any(stream.has_begun for stream in self.streams)

    @property
    def are_held(self) -> bool:
        """Whether a process can still write to one of them."""
        return not all(stream.is_over for stream in self.streams)

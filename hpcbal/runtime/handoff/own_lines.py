"""Lines that hpcbal itself prints in ranks reach `hpcbal run` by files, apart from what other code prints.

Code of users, libraries and MPI may print without an end. mpirun forwards all of it in one stream, and
`hpcbal run` passes on a part of that. So what hpcbal says takes another way: a file for each stream in the
launch directory. Ranks that another launcher has started write to their standard streams.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import sys
from pathlib import Path
from typing import Any

from hpcbal.processes import speak_by

NAMES = ("stdout", "stderr")
_CHUNK_BYTES, _MOST_CHUNKS = 1 << 16, 16


def take_own_way(directory: Path | None) -> None:
    """Let what this rank prints for hpcbal take a way of its own, whatever `sys.stdout` becomes later.

    Args:
        directory: the launch directory; None if another launcher has started this rank.
    """
    for number, name in enumerate(NAMES, 1):
        stream = getattr(sys, name)
        if directory is not None:
            file = AppendedFile(directory / name, otherwise=number)
            stream = io.TextIOWrapper(
                file,  # type: ignore[arg-type]  # a raw stream will do, as in python -u
                encoding=stream.encoding,
                errors="backslashreplace",
                write_through=True,
            )
        speak_by(name, stream)


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

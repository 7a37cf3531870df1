"""The ledger's file: what happened in a run, one line per event, append-only.

Only rank 0 writes it. It needs no locks and no database, so it works on every file system.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from types import TracebackType
from typing import TypeVar

from hpcbal.errors import LedgerError
from hpcbal.telemetry.files.atomic_file import output_error
from hpcbal.telemetry.files.json_lines import encode_line, open_to_append, read_numbered_lines, write_all
from hpcbal.telemetry.files.utc import utc_text
from hpcbal.telemetry.ledger.codec import Entry, entry_of, plain_of
from hpcbal.telemetry.ledger.line import Line

_Kind = TypeVar("_Kind", bound=Line)


class Ledger:
    """Appends lines to a file; continues an existing file after removing its incomplete last line.

    Raises:
        OutputError: if the file cannot be opened.
        LedgerError: if the file holds an invalid line.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        try:
            self._next_seq = 1 + max((entry.seq for entry in read_ledger(path)), default=-1)
            self._file = open_to_append(path)
            self._torn_from: int | None = None  # where a failed append began, if it is not removed
        except OSError as error:
            raise output_error(path, error, "open the ledger") from error

    def append(self, line: Line, *, durable: bool = False) -> int:
        """Write one line immediately.

        Args:
            line: the line to write.
            durable: whether to wait until the line is on the disk (takes milliseconds, or longer on a
                parallel file system), for lines that must survive the loss of the node. If only the process
                is killed, no line is lost.

        Returns:
            The line's `seq`.

        Raises:
            OutputError: if the disk is full or the file cannot be written. A partly written line is removed.
            ValueError: if a field has a value that `read_ledger` would reject; nothing is written.
        """
        seq = self._next_seq
        data = encode_line(plain_of(Entry(seq, utc_text(), line)))
        try:
            if self._torn_from is not None:
                self._remove_torn(self._torn_from)
            self._torn_from = self._file.seek(0, os.SEEK_END)
            write_all(self._file, data)
            if durable:
                os.fsync(self._file.fileno())
            self._torn_from = None
        except OSError as error:
            if self._torn_from is not None:
                with contextlib.suppress(OSError):  # if this fails, the next append tries again
                    self._remove_torn(self._torn_from)
            raise output_error(self._path, error, "append to the ledger") from error
        self._next_seq = seq + 1
        return seq

    def _remove_torn(self, start: int) -> None:
        """Remove what a failed append has written, from byte `start` on."""
        self._file.truncate(start)
        self._torn_from = None

    def close(self) -> None:
        """Close the file; nothing is buffered."""
        self._file.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_ledger(path: str | os.PathLike[str]) -> list[Entry]:
    """All complete lines in order; incomplete ones are skipped (see `read_json_lines`).

    A missing file is an empty ledger.

    Raises:
        LedgerError: if a complete line is not valid in this or the previous schema.
        OSError: if the file exists but cannot be read.
    """
    entries = []
    for number, plain in read_numbered_lines(path):
        try:
            entries.append(entry_of(plain))
        except ValueError as error:
            raise LedgerError(
                f"{os.fspath(path)}:{number}: {error}; the file is damaged or from another version of "
                "hpcbal: restore it, use the version that wrote it, or choose another output directory"
            ) from error
    return entries


def lines_of(entries: Iterable[Entry], kind: type[_Kind]) -> list[_Kind]:
    """The lines of one kind, in order."""
    return [entry.line for entry in entries if isinstance(entry.line, kind)]

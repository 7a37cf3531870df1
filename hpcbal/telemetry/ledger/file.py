"""The ledger's file: what happened in a run, one line per event, append-only.

Only rank 0 writes it. It needs no locks and no database, so it works on every file system.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TypeVar

from hpcbal.errors import OutputError
from hpcbal.events.line import Line
from hpcbal.telemetry.files.atomic_file import output_error, read_file
from hpcbal.telemetry.files.json_lines import encode_line, open_to_append, utc_text, write_all
from hpcbal.telemetry.ledger.account import RunAccount
from hpcbal.telemetry.ledger.codec import Entry, plain_of, seal
from hpcbal.telemetry.ledger.scan import LedgerScan, scan_lines

log = logging.getLogger(__name__)

_Kind = TypeVar("_Kind", bound=Line)


class Ledger:
    """Appends lines to a file; continues an existing file after removing its incomplete last line.

    Args:
        path: path of the file.
        earlier: what `scan_ledger` found in the file; None: the file is scanned here.
        on_progress: called after a line that says that something got further than the lines before say.

    Attributes:
        account: what the run has taken, by all lines.

    Raises:
        OutputError: if the file cannot be opened, or is a symbolic link.
        LedgerError: if the file holds an invalid line.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        earlier: LedgerScan | None = None,
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        self._path = os.fspath(path)
        self._on_progress = on_progress
        try:
            entries = (scan_ledger(path) if earlier is None else earlier).entries
            self._reached = dict(at for entry in entries if (at := entry.line.reached()) is not None)
            self._next_seq = entries[-1].seq + 1 if entries else 0
            self.account = RunAccount()
            for entry in entries:
                self.account.take(entry.unix_s, entry.line)
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
        data = seal(encode_line(plain_of(Entry(seq, utc_text(), line))))
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
        self.account.take(time.time(), line)
        if (at := line.reached()) is not None and self._reached.get(at[0]) != at[1]:
            self._reached[at[0]] = at[1]
            self._on_progress()
        return seq

    def _remove_torn(self, start: int) -> None:
        """Remove what a failed append has written, from byte `start` on."""
        self._file.truncate(start)
        self._torn_from = None

    def check(self) -> None:
        """Check that the file is still the one under its name, so that the next start will find it.

        Raises:
            OutputError: if it was removed or replaced.
        """
        try:
            is_same = _is_same(os.fstat(self._file.fileno()), os.lstat(self._path))
        except FileNotFoundError:
            is_same = False
        except OSError as error:
            raise output_error(self._path, error, "find the ledger") from error
        if not is_same:
            raise OutputError(
                f"{self._path}: was removed or replaced during the run, so the record of this start is lost; "
                "run the same command again: it trains what has no whole checkpoint"
            )

    def close(self) -> None:
        """Close the file; nothing is buffered."""
        self._file.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _is_same(own: os.stat_result, found: os.stat_result) -> bool:
    """Whether two results describe one file; some file systems give a file another inode at each look."""
    looks_alike = (own.st_size, own.st_mtime_ns) == (found.st_size, found.st_mtime_ns)
    return os.path.samestat(own, found) or (looks_alike and stat.S_ISREG(found.st_mode))


def read_ledger(path: str | os.PathLike[str]) -> list[Entry]:
    """All whole lines in order; a warning is logged if the file is damaged.

    A missing file is an empty ledger.

    Raises:
        LedgerError: if a whole line is not valid.
        OutputError: if the file exists but cannot be read.
    """
    scan = scan_ledger(path)
    if scan.problem is not None:
        log.warning("%s", scan.problem)
    return scan.entries


def scan_ledger(path: str | os.PathLike[str]) -> LedgerScan:
    """Read a ledger like `read_ledger`, and return the warning too, which `read_ledger` logs."""
    try:
        data = read_file(path)
    except FileNotFoundError:
        data = b""
    except OSError as error:
        raise output_error(path, error, "read the ledger") from error
    return scan_lines(data, os.fspath(path))


def lines_of(entries: Iterable[Entry], kind: type[_Kind]) -> list[_Kind]:
    """The lines of one kind, in order."""
    return [entry.line for entry in entries if isinstance(entry.line, kind)]

"""The ledger: what happened in a run, one line per event, only ever appended to.

Each line is an object with `schema`, `seq` (counts up over all starts of the run), `time` (UTC), `event` and
the event's own fields. Rank 0 alone writes it. No locks and no database: it works on every file system.
"""

from __future__ import annotations

import contextlib
import os
from types import TracebackType
from typing import Any

from hpcbal.telemetry.files.atomic_file import output_error
from hpcbal.telemetry.files.json_lines import encode_line, open_to_append, read_json_lines, write_all
from hpcbal.telemetry.files.utc import utc_text

LEDGER_SCHEMA = 1
_OWN_FIELDS = {"schema", "seq", "time", "event"}


class Ledger:
    """Appends events to a file; continues the count of an existing one, without its torn last line.

    Raises:
        OutputError: if the file cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        try:
            self._next_seq = 1 + max((int(line.get("seq", -1)) for line in read_ledger(path)), default=-1)
            self._file = open_to_append(path)
            self._torn_from: int | None = None  # where a failed append began, if it is not removed
        except OSError as error:
            raise output_error(path, error, "open the ledger") from error

    def append(self, event: str, /, *, durable: bool = False, **fields: Any) -> int:
        """Write one event, at once.

        Args:
            event: its name, like `round-started`.
            durable: also wait until it is on the disk (milliseconds, more on a parallel file system):
                for what must survive the loss of the node; a kill of the process loses nothing anyway.
            fields: what belongs to the event: numbers, text, dataclasses, lists, arrays (see `to_jsonable`).

        Returns:
            The event's `seq`.

        Raises:
            OutputError: if the disk is full or the file gone bad. What was written of the line is removed.
            ValueError: if a field has the name of one of the ledger's own.
        """
        if clash := _OWN_FIELDS & fields.keys():
            raise ValueError(f"ledger event {event!r}: field names {sorted(clash)} are the ledger's own")
        seq = self._next_seq
        line = {"schema": LEDGER_SCHEMA, "seq": seq, "time": utc_text(), "event": event, **fields}
        data = encode_line(line)
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
                with contextlib.suppress(OSError):  # a file gone bad: the next append tries again
                    self._remove_torn(self._torn_from)
            raise output_error(self._path, error, "append to the ledger") from error
        self._next_seq = seq + 1
        return seq

    def _remove_torn(self, start: int) -> None:
        """Cut off what a failed append has left from byte `start` on."""
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


def read_ledger(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """All whole events in order, torn lines left out (see `read_json_lines`); no file is an empty ledger."""
    return read_json_lines(path)

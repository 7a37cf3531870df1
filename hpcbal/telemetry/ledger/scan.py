"""Read the lines of a ledger: skip damaged ones, refuse those of other versions, notice missing ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from hpcbal.errors import LedgerError
from hpcbal.events.ensemble import EpochDone, StartGroup, StartRound
from hpcbal.telemetry.files.atomic_file import regular_file
from hpcbal.telemetry.files.json_lines import object_of
from hpcbal.telemetry.ledger.codec import NAME, Entry, entry_of, is_intact

_TORN = "is not a whole line (an interrupted write, or a damaged disk)"
_CHANGED = f"does not fit its checksum (a damaged disk, or an edited line: remove its {NAME})"


@dataclass(frozen=True, slots=True)
class LedgerScan:
    """The content of a ledger's file.

    Attributes:
        entries: its usable lines, with ascending numbers.
        problem: one sentence about all damage; None if there is none.
    """

    entries: list[Entry]
    problem: str | None = None


def scan_lines(data: bytes, name: str) -> LedgerScan:
    """Read the content of a file.

    Damaged lines are skipped, and so are lines whose number is not above the one before. An incomplete last
    line is not damage, because it may be in the middle of being written. A wrong line without a checksum is
    damaged if other lines have checksums; otherwise a version without checksums may have written it.

    Args:
        data: the content.
        name: name of the file, for messages.

    Raises:
        LedgerError: if a line that is not damaged is not valid in a readable schema.
    """
    reader = _Reader(name)
    reader.feed(data)
    return LedgerScan(reader.entries, reader.problem)


class LedgerTail:
    """Reads what a run adds to its ledger; a line counts once it is whole.

    Args:
        path: path of the file; a missing file is an empty one.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._offset = 0
        self._reader = _Reader(os.fspath(path))

    @property
    def problem(self) -> str | None:
        """Return one sentence about all damage so far; None if there is none."""
        return self._reader.problem

    def read(self) -> list[Entry] | None:
        """Return the entries that are new; None if the file is another one, which a new tail has to read.

        Raises:
            LedgerError: as `scan_lines`.
            OSError: the file cannot be read.
        """
        try:
            with open(self._path, "rb", opener=regular_file) as file:
                if file.seek(0, os.SEEK_END) < self._offset:
                    return None
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return None if self._offset else []
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        del self._reader.entries[:-1]  # the last one has the number that the next one follows
        before = len(self._reader.entries)
        self._reader.feed(data[:whole])
        return self._reader.entries[before:]


def _numbered(data: bytes, first: int) -> Iterator[tuple[int, bytes, bool]]:
    """The lines that are not blank, with their numbers, and whether they lack a line end."""
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if line.strip(b" \r") and (line.strip(b"\0 \r") or number < len(lines)):
            yield first + number, line, number == len(lines)


@dataclass
class _Reader:
    """Collects lines, and what is wrong with them.

    Attributes:
        name: name of the file, for messages.
    """

    name: str
    entries: list[Entry] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    num_lines: int = 0
    num_skipped: int = 0  # since the last usable line
    trained: set[str] = field(default_factory=set)
    has_checksums: bool = False

    def feed(self, data: bytes) -> None:
        """Read the next part of the file; but for the last one, it ends with a line."""
        numbered = _numbered(data, self.num_lines)
        lines = [(number, line, is_last, is_intact(line)) for number, line, is_last in numbered]
        self.num_lines += data.count(b"\n")
        self.has_checksums |= any(intact for _, _, _, intact in lines)
        for number, line, is_last, intact in lines:
            plain = object_of(line)
            if plain is None and is_last:
                continue
            if plain is None or intact is False or (intact is None and NAME in plain):
                self.skip(number, _TORN if plain is None else _CHANGED)
                continue
            try:
                entry = entry_of({key: value for key, value in plain.items() if key != NAME})
            except ValueError as error:
                if intact is None and self.has_checksums:
                    self.skip(number, f"is wrong ({error})")
                    continue
                raise LedgerError(
                    f"{self.name}:{number}: {error}; the file is damaged or from another version of hpcbal: "
                    "restore it, use the version that wrote it, choose another output directory, or remove "
                    "this line to go on without what it recorded"
                ) from error
            self.take(number, entry)

    def skip(self, number: int, why: str) -> None:
        self.problems.append(f"line {number} {why}")
        self.num_skipped += 1

    def take(self, number: int, entry: Entry) -> None:
        expected = self.entries[-1].seq + 1 if self.entries else 0
        if entry.seq < expected:
            self.problems.append(f"line {number} has the number {entry.seq} again")
            return
        if entry.seq > expected + self.num_skipped:
            self.problems.append(f"lines are missing before line {number}")
        self._check_dnn(number, entry)
        self.entries.append(entry)
        self.num_skipped = 0

    def _check_dnn(self, number: int, entry: Entry) -> None:
        """Notice an epoch of a DNN that no earlier line has let train."""
        match entry.line:
            case StartRound(plan) | StartGroup(plan):
                self.trained.update(group.dnn_id for group in plan.groups)
            case EpochDone(dnn) if dnn not in self.trained:
                self.trained.add(dnn)  # one sentence is enough
                self.problems.append(f"line {number} is an epoch of {dnn}, which no earlier line trains")

    @property
    def problem(self) -> str | None:
        if not self.problems:
            return None
        more = len(self.problems) - 1
        others = f" (and {more} more problem{'s' if more > 1 else ''})" if more else ""
        return f"{self.name} is damaged: {self.problems[0]}{others}; reports lack what it recorded"

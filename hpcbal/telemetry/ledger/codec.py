"""Encode lines as JSON with a checksum, and decode them, with the same classes.

A flipped bit often turns a digit into another one, so the line would still be valid. CRC-32 protects against
accidents, not against forgery.
"""

from __future__ import annotations

import functools
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from hpcbal.errors import HpcbalError
from hpcbal.events.line import IN_FILE, Facts, Line, name_in_file
from hpcbal.telemetry.files.atomic_file import to_jsonable
from hpcbal.telemetry.files.json_lines import unix_seconds
from hpcbal.telemetry.ledger.registry import LINE_BY_EVENT

NAME = "crc32"
"""The field with the checksum, always the last one."""

_SEALED = re.compile(rb'(\{.+), "' + NAME.encode() + rb'": "([0-9a-f]{8})"\}\r?')


def seal(line: bytes) -> bytes:
    """Add the checksum to a line, which is a JSON object with at least one field, and a line end."""
    body = line.rstrip(b"\n")
    return b'%s, "%s": "%08x"}\n' % (body[:-1], NAME.encode(), zlib.crc32(body))


def is_intact(line: bytes) -> bool | None:
    """Whether the checksum of a line without its line end fits; None if the line has no checksum."""
    found = _SEALED.fullmatch(line)
    if found is None:
        return None
    return zlib.crc32(found[1] + b"}") == int(found[2], 16)


LEDGER_SCHEMA = 2
ENVELOPE = ("schema", "seq", "time", "event")
"""Fields that every line has besides those of its kind."""

_Kind = TypeVar("_Kind", bound=Facts)
_ABSENT = object()
_MOST_SHOWN = 60
_ALLOWED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "mapping_type": "an object",
    "dict_type": "an object",
    "dataclass_type": "an object",
}
"""The allowed value, for each type of pydantic's errors."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of a ledger with its number and time.

    Attributes:
        seq: number of the line, counted from 0 over all starts of the run.
        time: time of writing, UTC, as text.
        line: the line itself.
    """

    seq: int
    time: str
    line: Line

    @property
    def unix_s(self) -> float:
        """`time` in seconds since 1970."""
        return unix_seconds(self.time)


def plain_of(entry: Entry) -> dict[str, Any]:
    """An entry as plain JSON values.

    Raises:
        ValueError: if a field has a value that its kind does not allow, so the line could not be read again.
    """
    own = plain_facts(entry.line)
    facts_of(LINE_BY_EVENT[entry.line.event], own)
    return {
        "schema": LEDGER_SCHEMA,
        "seq": entry.seq,
        "time": entry.time,
        "event": entry.line.event,
        **own,
    }


def entry_of(plain: Mapping[str, Any]) -> Entry:
    """The inverse of `plain_of`.

    Raises:
        ValueError: if the line is not valid; the message says what was found and what is allowed.
    """
    schema, seq, time, event = (plain.get(name, _ABSENT) for name in ENVELOPE)
    if type(schema) is not int or schema != LEDGER_SCHEMA:
        raise ValueError(_refusal("schema", schema, str(LEDGER_SCHEMA)))
    if type(seq) is not int or seq < 0:
        raise ValueError(_refusal("seq", seq, "a whole number from 0 on"))
    if not isinstance(time, str) or not _is_time(time):
        raise ValueError(_refusal("time", time, "a time like 2025-01-31T12:00:00.000Z"))
    if not isinstance(event, str) or event not in LINE_BY_EVENT:
        raise ValueError(_refusal("event", event, ", ".join(LINE_BY_EVENT)))
    own = {name: value for name, value in plain.items() if name not in ENVELOPE}
    return Entry(seq, time, facts_of(LINE_BY_EVENT[event], own))


def plain_facts(facts: Facts) -> dict[str, Any]:
    """Return the fields of a line, or of a value inside one, as plain JSON values; NaN becomes null."""
    own: dict[str, Any] = to_jsonable(facts, IN_FILE)
    return own


def facts_of(kind: type[_Kind], own: Mapping[str, Any]) -> _Kind:
    """Return the line, or the value inside one, that `plain_facts` has made plain.

    Raises:
        ValueError: if a field is not valid; the message says what was found and what is allowed.
    """
    from pydantic import ValidationError  # not at the top: commands like `status` read no ledger

    # Lone surrogates (file names that are not valid text) have no UTF-8; they are read as question marks.
    text = json.dumps(own, ensure_ascii=False).encode(errors="replace")
    name = kind.event if issubclass(kind, Line) else kind.__name__
    try:
        facts: _Kind = _adapter(cast(Any, kind)).validate_json(text)
    except ValidationError as error:
        raise ValueError(f"{name}: {_problem(kind, error.errors(include_url=False)[0])}") from error
    except HpcbalError as error:
        raise ValueError(f"{name}: {error}") from error
    return facts


@functools.cache
def _adapter(kind: type[Facts]) -> Any:
    """The adapter of a kind, made on demand: making all of them takes longer than reading most ledgers."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _problem(kind: type[Facts], found: Mapping[str, Any]) -> str:
    place = ".".join(map(str, found["loc"]))
    match found["type"]:
        case "missing":
            return f"field {place} is missing"
        case "unexpected_keyword_argument":
            known = f", allowed: {', '.join(map(name_in_file, kind.field_names()))}"
            return f"unknown field {place}" + (known if len(found["loc"]) == 1 else "")
        case "literal_error":
            return _refusal(place, found["input"], found["ctx"]["expected"])
        case "value_error":
            return f"{place + ': ' if place else ''}{found['ctx']['error']}"
    return _refusal(place, found["input"], _ALLOWED.get(found["type"], found["msg"]))


def _refusal(name: str, found: Any, allowed: str) -> str:
    shown = "absent" if found is _ABSENT else json.dumps(found, default=repr)
    shown = shown if len(shown) <= _MOST_SHOWN else f"{shown[: _MOST_SHOWN - 3]}..."
    return f"{name} is {shown}, allowed: {allowed}"


def _is_time(text: str) -> bool:
    try:
        unix_seconds(text)
    except (ValueError, OverflowError):
        return False
    return text.endswith("Z")

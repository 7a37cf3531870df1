"""Detect damaged lines of a ledger: each line ends with a checksum of itself.

A flipped bit often turns a digit into another one, so the line would still be valid. CRC-32 protects against
accidents, not against forgery.
"""

from __future__ import annotations

import re
import zlib

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

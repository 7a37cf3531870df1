"""The format of TFRecord files: records with checksums, each of them a `tf.train.Example`; no TensorFlow.

A record is the length of its data (8 bytes, little-endian), a masked CRC-32C of this length, the data, and a
masked CRC-32C of the data. An Example is a Protocol Buffer of three nested messages, a map of features by
name; a feature is a list of texts, of floating-point or of whole numbers.

Source: tensorflow/core/lib/io/record_writer.h and tensorflow/core/example/feature.proto; for CRC-32C RFC
3720, Sec. 12.1.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import HpcbalError

Span = tuple[int, int]
"""Where a text or message begins and ends in the data of a record."""

NOTHING, BYTES, FLOATS, INTEGERS = range(4)
"""Kinds of features, as `feature.proto` numbers them."""


class Feature(NamedTuple):
    """A feature of an Example.

    Attributes:
        kind: of its values.
        values: of `BYTES` where they are, of `INTEGERS` the numbers, of others none.
    """

    kind: int
    values: list[Any]


_LENGTH_BYTES = 8
_CHECKSUM = struct.Struct("<I")
_MASK = 0xA282EAD8

_LENGTH_DELIMITED = 2
_FIXED_BYTES = {1: 8, 5: 4}
"""Bytes of the wire types of fixed length."""


class TFRecordError(HpcbalError):
    """A file is not of this format, or is damaged."""


def records(file: BinaryIO, num_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Read the records of a file from its start, and check their checksums.

    Args:
        file: at its start.
        num_bytes: its size.

    Yields: where the data of a record begin in the file, and the data.

    Raises:
        TFRecordError: if a checksum is wrong, or the file ends inside a record.
    """
    place = number = 0
    while place < num_bytes:
        header = file.read(_LENGTH_BYTES + _CHECKSUM.size)
        length = int.from_bytes(header[:_LENGTH_BYTES], "little")
        place += len(header)
        if len(header) < _LENGTH_BYTES + _CHECKSUM.size:
            raise TFRecordError(f"it ends inside record {number}")
        if header[_LENGTH_BYTES:] != _CHECKSUM.pack(_masked(header[:_LENGTH_BYTES])):
            if number == 0:
                raise TFRecordError("it does not begin with a record, or is compressed")
            raise TFRecordError(f"the length of record {number} is damaged")
        if place + length + _CHECKSUM.size > num_bytes:
            raise TFRecordError(f"it ends inside record {number}")
        data, stored = file.read(length), file.read(_CHECKSUM.size)
        if stored != _CHECKSUM.pack(_masked(data)):
            raise TFRecordError(f"record {number} is damaged: it has another checksum")
        yield place, data
        place += length + _CHECKSUM.size
        number += 1


# ---- checksums ---------------------------------------------------------------------------------------------

_POLYNOMIAL = 0x82F63B78
_LANE = 64
"""Bytes of a lane; all lanes of a record are computed at the same time."""
_SHORT = 2048
"""Bytes up to which a loop is faster."""


def _masked(data: bytes) -> int:
    checksum = crc32c(data)
    return ((checksum >> 15 | checksum << 17) + _MASK) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of some bytes.

    A state is a linear function (of bits) of the state before it and the bytes between them. So lanes of the
    data are computed from the state 0, two bytes at once, and neighbours are put together: the left one goes
    on through as many zeros as the right one is long.
    """
    if len(data) < _SHORT:
        state, of_byte = 0xFFFFFFFF, _table_of_bytes()
        for byte in data:
            state = state >> 8 ^ of_byte[(state ^ byte) & 0xFF]
        return state ^ 0xFFFFFFFF
    num_lanes = -(-len(data) // _LANE)
    padded = np.zeros(num_lanes * _LANE, np.uint8)  # zeros in front do not change the state 0
    start = len(padded) - len(data)
    padded[start:] = np.frombuffer(data, np.uint8)
    padded[start : start + 4] ^= 0xFF  # instead of the state 2**32 - 1 at the start
    of_pair = _table_of_pairs()
    states = np.zeros(num_lanes, np.uint32)
    for pairs in np.ascontiguousarray(padded.view("<u2").reshape(num_lanes, -1).T):
        states = of_pair.take(states.astype(np.uint16) ^ pairs) ^ (states >> 16)
    level = 0
    while len(states) > 1:
        if len(states) % 2:
            states = np.concatenate([np.zeros(1, np.uint32), states])
        states = _through_zeros(states[::2], level) ^ states[1::2]
        level += 1
    return int(states[0]) ^ 0xFFFFFFFF


@cache
def _table_of_bytes() -> list[int]:
    """The state after each byte, from the state 0."""
    states = list(range(256))
    for _ in range(8):
        states = [state >> 1 ^ _POLYNOMIAL * (state & 1) for state in states]
    return states


@cache
def _table_of_pairs() -> NDArray[np.uint32]:
    """The state after each pair of bytes, shape (2**16,)."""
    of_byte, states = np.array(_table_of_bytes(), np.uint32), np.arange(2**16, dtype=np.uint32)
    for _ in range(2):
        states = states >> 8 ^ of_byte[states & 0xFF]
    return states


@cache
def _table_of_zeros(level: int) -> NDArray[np.uint32]:
    """Where `_LANE * 2**level` zeros lead from each value of each byte of a state, shape (4, 256)."""
    states = np.arange(256, dtype=np.uint32) << np.array([[0], [8], [16], [24]], np.uint32)
    if level:
        return _through_zeros(_through_zeros(states, level - 1), level - 1)
    for _ in range(_LANE // 2):
        states = _table_of_pairs()[states & 0xFFFF] ^ (states >> 16)
    return states


def _through_zeros(states: NDArray[np.uint32], level: int) -> NDArray[np.uint32]:
    """Where `_LANE * 2**level` zeros lead from each of these states."""
    table = _table_of_zeros(level)
    of_bytes = [table[number].take((states >> 8 * number).astype(np.uint8)) for number in range(4)]
    return of_bytes[0] ^ of_bytes[1] ^ of_bytes[2] ^ of_bytes[3]


# ---- examples ----------------------------------------------------------------------------------------------


def features_of(example: bytes, wanted: Collection[str] = ()) -> dict[str, Feature]:
    """Return the features of an Example by name, with the values of those that are wanted.

    Raises:
        TFRecordError: if these bytes are no Example.
    """
    found: dict[str, Feature] = {}
    try:
        for features in _messages(example, (0, len(example)), 1):
            for entry in _messages(example, features, 1):
                names = [example[slice(*span)].decode() for span in _messages(example, entry, 1)]
                kind, lists = NOTHING, list[Span]()
                for feature in _messages(example, entry, 2):
                    for number, span in _fields(example, feature):
                        if number <= INTEGERS and isinstance(span, tuple):
                            kind, lists = number, [*(lists if number == kind else ()), span]
                name = names[-1] if names else ""
                values = _values(example, kind, lists) if name in wanted else []
                found[name] = Feature(kind, values)
    except (LookupError, ValueError) as error:
        raise TFRecordError("no tf.train.Example") from error
    return found


def _values(data: bytes, kind: int, lists: Sequence[Span]) -> list[Any]:
    if kind == BYTES:
        return [span for each in lists for span in _messages(data, each, 1)]
    values: list[int] = []
    for number, value in (field for each in lists if kind == INTEGERS for field in _fields(data, each)):
        if number != 1:
            continue
        if isinstance(value, int):
            values.append(value)
            continue
        at, stop = value  # of several numbers together
        while at < stop:
            packed, at = _varint(data, at)
            values.append(packed)
    return [value - 2**64 if value >= 2**63 else value for value in values]


def _messages(data: bytes, span: Span, number: int) -> Iterator[Span]:
    """Where the texts or messages are that are the field of this number."""
    for found, value in _fields(data, span):
        if found == number and isinstance(value, tuple):
            yield value


def _fields(data: bytes, span: Span) -> Iterator[tuple[int, int | Span]]:
    """Numbers and values of the fields of a message: whole numbers, and where other values are.

    Raises:
        LookupError, ValueError: if it is no message.
    """
    at, stop = span
    while at < stop:
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        length, at = _varint(data, at) if wire == _LENGTH_DELIMITED else (_FIXED_BYTES[wire], at)
        if at + length > stop:
            raise ValueError("a field ends behind its message")
        yield number, (at, at + length)
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value & 2**64 - 1, at
        if shift > 63:
            raise ValueError("a number of more than 64 bits")

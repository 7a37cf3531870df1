"""TensorBoard's event files, for scalars only, without TensorFlow.

The format is small and has not changed since 2015: TFRecords of protocol-buffer messages. Writing it here
(70 lines) avoids a dependency: `tensorboard` imports TensorFlow for writing if that is installed, and
`tensorboardX` pins the version of protobuf. The tests read the files back with TensorBoard's own code.

Source: tensorflow/core/lib/io/record_writer.h (framing), tensorflow/core/util/event.proto and
tensorflow/core/framework/summary.proto (messages; field numbers in the comments below).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

_CRC32C_POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected


def _make_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_CRC32C_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


_CRC32C_TABLE = _make_table()


def file_start(wall_time_s: float) -> bytes:
    """The first records of a file.

    The second record makes a running TensorBoard discard what it read from earlier files of this directory,
    because the new file contains all of it.
    """
    version = _double(1, wall_time_s) + _bytes(3, b"brain.Event:2")  # Event.wall_time, .file_version
    session_start = _varint_field(1, 1)  # SessionLog.status = START
    restart = _double(1, wall_time_s) + _varint_field(2, 0) + _bytes(7, session_start)  # Event.session_log
    return _record(version) + _record(restart)


def scalars_record(step: int, scalars: Mapping[str, float], wall_time_s: float) -> bytes:
    """One record: the values of `scalars` at `step` (>= 0)."""
    values = b""
    for tag, value in scalars.items():
        # Summary.value = { tag = 1, simple_value = 2 }
        values += _bytes(1, _bytes(1, tag.encode()) + _float(2, value))
    return _record(
        _double(1, wall_time_s) + _varint_field(2, step) + _bytes(5, values)
    )  # Event.step, .summary


def _record(data: bytes) -> bytes:
    """TFRecord framing: length, its checksum, data, its checksum."""
    length = struct.pack("<Q", len(data))
    return length + _masked_crc32c(length) + data + _masked_crc32c(data)


def _masked_crc32c(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC32C_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _varint_field(field: int, number: int) -> bytes:
    return _varint(field << 3) + _varint(number)


def _double(field: int, number: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", number)


def _bytes(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _float(field: int, number: float) -> bytes:
    try:
        packed = struct.pack("<f", number)
    except OverflowError:  # beyond float32
        packed = struct.pack("<f", float("inf") if number > 0 else float("-inf"))
    return _varint(field << 3 | 5) + packed

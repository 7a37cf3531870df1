"""Detect damaged or changed files before HDF5 looks at them.

The first 512 bytes of the file (HDF5's "user block", which HDF5 skips) are one line of text: format version,
number and CRC-32 of all bytes that follow. So every flipped or missing byte is detected, also in HDF5's own
records, where damage could crash HDF5. CRC-32 runs at several GB/s on every processor; it protects against
accidents, not against forgery. `head -c 512 checkpoint.h5` shows the line.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from pathlib import Path
from typing import BinaryIO

from hpcbal.errors import CheckpointError
from hpcbal.telemetry.files.atomic_file import regular_file


def digest_of(path: Path) -> str:
    """SHA-256 of a file, hexadecimal.

    Raises:
        OSError: if it cannot be read.
    """
    with open(path, "rb", opener=regular_file) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


FORMAT_VERSION = 1
SEAL_BYTES = 512
_MAGIC = b'{"hpcbal_checkpoint": '
_PIECE_BYTES = 4 << 20


class OtherVersionError(CheckpointError):
    """A whole checkpoint, written by another version of hpcbal."""


def start_checksum(version: int = FORMAT_VERSION) -> int:
    """The CRC-32 before the first byte; it depends on the version, so the version is protected too."""
    return zlib.crc32(str(version).encode())


def make_seal(num_bytes: int, crc32: int, version: int = FORMAT_VERSION) -> bytes:
    """Make the first 512 bytes of a file whose other `num_bytes` bytes have the checksum `crc32`."""
    text = json.dumps({"hpcbal_checkpoint": version, "bytes": num_bytes, "crc32": f"{crc32:08x}"})
    return text.encode().ljust(SEAL_BYTES - 1) + b"\n"


def verify(path: Path) -> None:
    """Check that the file is whole; reads it once.

    Raises:
        CheckpointError: if the file is not whole; the message gives the reason, without the path.
        OtherVersionError: if it is whole, but another version wrote it. All versions use the same seal.
        OSError: if it cannot be opened or read.
    """
    with open(path, "rb", buffering=0, opener=regular_file) as file:
        version, num_bytes, crc32 = _read_seal(file)
        actual_bytes = file.seek(0, 2) - SEAL_BYTES
        if actual_bytes != num_bytes:
            raise CheckpointError(
                f"it is truncated or extended: it has {actual_bytes + SEAL_BYTES} bytes and "
                f"should have {num_bytes + SEAL_BYTES}"
            )
        file.seek(SEAL_BYTES)
        actual_crc32 = _checksum(file, start_checksum(version))
    if actual_crc32 != crc32:
        raise CheckpointError(f"its content is damaged: checksum {actual_crc32:08x} instead of {crc32:08x}")
    if version != FORMAT_VERSION:
        raise OtherVersionError(f"its format is version {version}; this hpcbal reads {FORMAT_VERSION}")


def has_sealed_length(path: Path) -> bool:
    """Whether the file has a seal and the length that it states; reads 512 bytes.

    Raises:
        OSError: if it cannot be opened or read.
    """
    with open(path, "rb", buffering=0, opener=regular_file) as file:
        try:
            _, num_bytes, _ = _read_seal(file)
        except CheckpointError:
            return False
        return file.seek(0, 2) == num_bytes + SEAL_BYTES


def _read_seal(file: BinaryIO) -> tuple[int, int, int]:
    """Read (version, number of bytes, CRC-32) from the start of `file`."""
    seal = file.read(SEAL_BYTES)
    if not seal:
        raise CheckpointError("it is empty")
    if not seal.startswith(_MAGIC[: len(seal)]):
        raise CheckpointError("it does not start like a checkpoint of hpcbal")
    if len(seal) < SEAL_BYTES:
        raise CheckpointError(f"it is truncated to {len(seal)} bytes")
    try:
        fields = json.loads(seal)
        version, num_bytes, crc32 = fields["hpcbal_checkpoint"], fields["bytes"], int(fields["crc32"], 16)
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError("its first 512 bytes are damaged") from error
    if type(version) is not int or type(num_bytes) is not int or make_seal(num_bytes, crc32, version) != seal:
        raise CheckpointError("its first 512 bytes are damaged")
    return version, num_bytes, crc32


def _checksum(file: BinaryIO, crc32: int) -> int:
    """Continue the checksum `crc32` over the rest of `file`."""
    buffer = bytearray(_PIECE_BYTES)
    view = memoryview(buffer)
    while num_read := file.readinto(buffer):  # type: ignore[attr-defined]
        crc32 = zlib.crc32(view[:num_read], crc32)
    return crc32

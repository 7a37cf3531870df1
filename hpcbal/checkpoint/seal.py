"""Tell a whole checkpoint file from a damaged one before HDF5 looks at it.

The first 512 bytes of the file (HDF5's "user block", which HDF5 skips) are one line of text: format version,
number and CRC-32 of all bytes that follow. So every flipped or missing byte is noticed, in HDF5's own records
too, which HDF5 itself would follow into a crash. CRC-32 runs at several GB/s on every processor; it is there
against accidents, not against forgery. `head -c 512 checkpoint.h5` shows the line.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import BinaryIO

from hpcbal.errors import CheckpointError

FORMAT_VERSION = 1
SEAL_BYTES = 512
_MAGIC = b'{"hpcbal_checkpoint": '
_PIECE_BYTES = 4 << 20


def make_seal(num_bytes: int, crc32: int) -> bytes:
    """The first 512 bytes of a file whose other `num_bytes` bytes have the checksum `crc32`."""
    text = json.dumps({"hpcbal_checkpoint": FORMAT_VERSION, "bytes": num_bytes, "crc32": f"{crc32:08x}"})
    return text.encode().ljust(SEAL_BYTES - 1) + b"\n"


def verify(path: Path) -> None:
    """Check that the file is whole, reading it once.

    Raises:
        CheckpointError: with the reason (without the path) if the file is not whole or of another version.
        OSError: if it cannot be opened or read.
    """
    with open(path, "rb", buffering=0) as file:
        num_bytes, crc32 = _read_seal(file)
        actual_bytes = file.seek(0, 2) - SEAL_BYTES
        if actual_bytes != num_bytes:
            raise CheckpointError(
                f"it is truncated or was added to: {actual_bytes + SEAL_BYTES} bytes, "
                f"it should have {num_bytes + SEAL_BYTES}"
            )
        file.seek(SEAL_BYTES)
        actual_crc32 = _checksum(file)
    if actual_crc32 != crc32:
        raise CheckpointError(
            f"its content is damaged: checksum {actual_crc32:08x}, it should be {crc32:08x}"
        )


def _read_seal(file: BinaryIO) -> tuple[int, int]:
    """(number of bytes, CRC-32) as the first bytes of `file` say."""
    seal = file.read(SEAL_BYTES)
    if not seal:
        raise CheckpointError("it is empty")
    if not seal.startswith(_MAGIC):
        raise CheckpointError("it does not begin as a checkpoint of hpcbal")
    try:
        fields = json.loads(seal)
        version, num_bytes, crc32 = fields["hpcbal_checkpoint"], fields["bytes"], int(fields["crc32"], 16)
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError("its first 512 bytes are damaged") from error
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"its format is version {version!r}, this hpcbal reads version {FORMAT_VERSION}"
        )
    if not isinstance(num_bytes, int) or make_seal(num_bytes, crc32) != seal:
        raise CheckpointError("its first 512 bytes are damaged")
    return num_bytes, crc32


def _checksum(file: BinaryIO) -> int:
    """CRC-32 of the rest of `file`."""
    crc32 = 0
    buffer = bytearray(_PIECE_BYTES)
    view = memoryview(buffer)
    while num_read := file.readinto(buffer):  # type: ignore[attr-defined]
        crc32 = zlib.crc32(view[:num_read], crc32)
    return crc32

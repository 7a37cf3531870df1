"""The content of a checkpoint, all that a job needs to go on, and the seal that shows damage to its file.

The first 512 bytes of the file (HDF5's "user block", which HDF5 skips) are one line of text: format version,
number and CRC-32 of all bytes that follow. So every flipped or missing byte is detected, also in HDF5's own
records, where damage could crash HDF5. CRC-32 runs at several GB/s on every processor; it protects against
accidents, not against forgery. `head -c 512 checkpoint.h5` shows the line.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import CheckpointError
from hpcbal.events.history import EpochRecord, Position
from hpcbal.telemetry.files.atomic_file import regular_file


@dataclass(frozen=True, slots=True)
class TrainingState:
    """A job between two steps: a DNN of an ensemble, or what another kind of run trains.

    Attributes:
        name: name of the job in the config.
        epoch: completed epochs, >= 0.
        position: the sample at which training continues.
        history: one record per completed epoch, oldest first.
        arrays: what is trained, under path-like names (for a DNN: "weights/...", "optimizer/..."); numbers
            and booleans of any shape, never changed after the state was made. Empty if only the progress was
            read.
        fingerprint: fingerprint of the data; training must not continue with other data.
        meta: a small value that belongs to the kind of run, as JSON (None, booleans, numbers, text, lists,
            and mappings with text as keys). It is read with the progress. For DNNs see `best`.
    """

    name: str
    epoch: int
    position: Position
    history: tuple[EpochRecord, ...] = ()
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    fingerprint: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)


def progress_to_json(state: TrainingState) -> str:
    """All of `state` except the arrays. Floats survive exactly, NaN included.

    The name is stored as `dnn_id`; an empty `meta` is left out.

    Raises:
        CheckpointError: if `meta` holds a value that JSON would not restore exactly.
    """
    fields: dict[str, Any] = {
        "dnn_id": state.name,
        "epoch": state.epoch,
        "pass_index": state.position.pass_index,
        "offset": state.position.offset,
        "fingerprint": state.fingerprint,
        "history": [record.to_json() for record in state.history],
    }
    if state.meta:
        _check_json(dict(state.meta), "meta")
        fields["meta"] = dict(state.meta)
    return json.dumps(fields)


def progress_from_json(text: str, arrays: Mapping[str, NDArray[np.generic]]) -> TrainingState:
    """The inverse of `progress_to_json`.

    Raises:
        CheckpointError: if a field is missing or has another type.
    """
    try:
        fields = json.loads(text)
        return TrainingState(
            name=str(fields["dnn_id"]),
            epoch=int(fields["epoch"]),
            position=Position(int(fields["pass_index"]), int(fields["offset"])),
            history=tuple(map(EpochRecord.from_json, fields["history"])),
            arrays=arrays,
            fingerprint=str(fields["fingerprint"]),
            meta=dict(fields.get("meta", {})),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"its progress record cannot be understood ({error!r})") from error


def _check_json(value: Any, where: str) -> None:
    """Raise unless `value` is plain JSON; tuples, NumPy numbers and keys other than text would change."""
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        for key, item in value.items():
            _check_json(item, f"{where}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_json(item, f"{where}.{index}")
    elif value is not None and type(value) not in (bool, int, float, str):
        raise CheckpointError(
            f"{where} is {value!r}: the meta of a checkpoint can hold None, booleans, numbers, text, lists, "
            "and dicts with text as keys; put arrays into `arrays`"
        )


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

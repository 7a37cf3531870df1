"""Named arrays of a replica: whether they fit the model, and whether two ranks have equal ones."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcbal.errors import CheckpointError

Array = npt.NDArray[Any]
Arrays = dict[str, Array]


def check_fit(given: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    """Reject arrays that differ from those of the model in name, shape or type.

    Args:
        given: arrays from a checkpoint or another rank.
        expected: the model's own arrays, for names, shapes and types.

    Raises:
        CheckpointError: names the first array that is missing, unknown or different.
    """
    for name, own in expected.items():
        if name not in given:
            raise CheckpointError(f"/{name} is missing, the model expects it with shape {own.shape}")
        array = given[name]
        if array.shape != own.shape:
            raise CheckpointError(f"/{name} has shape {array.shape}, the model expects {own.shape}")
        if array.dtype != own.dtype:
            raise CheckpointError(f"/{name} has type {array.dtype}, the model expects {own.dtype}")
    unknown = [name for name in given if name not in expected]
    if unknown:
        raise CheckpointError(f"/{unknown[0]} is not in the model (the first of {len(unknown)} such arrays)")


def checksum(arrays: Mapping[str, Array]) -> int:
    """CRC-32 over names, shapes, types and bytes; equal for equal arrays, in any order of names."""
    crc = 0
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        crc = zlib.crc32(f"{name} {array.shape} {array.dtype.str}".encode(), crc)
        crc = zlib.crc32(array.reshape(-1).view(np.uint8).data, crc)
    return crc


def num_bytes(arrays: Mapping[str, Array]) -> int:
    """Bytes of all arrays together."""
    return sum(array.nbytes for array in arrays.values())

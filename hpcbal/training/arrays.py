"""Named arrays of a replica: whether two ranks have equal ones, and how many bytes they take."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Arrays = dict[str, Array]


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

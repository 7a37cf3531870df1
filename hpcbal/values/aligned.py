"""Arrays that start on a cache line, as TensorFlow needs them to use their memory in place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

LINE_BYTES = 64
"""A cache line, and the alignment of TensorFlow's own tensors."""


def aligned_empty(shape: Sequence[int], dtype: str) -> NDArray[Any]:
    """An uninitialised C-contiguous array whose first byte is the first one of a cache line."""
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(num_bytes + LINE_BYTES, np.uint8)
    shift = -raw.ctypes.data % LINE_BYTES
    return raw[shift : shift + num_bytes].view(dtype).reshape(shape)


def is_aligned(array: NDArray[Any]) -> bool:
    """Whether the array starts on a cache line."""
    return bool(array.ctypes.data % LINE_BYTES == 0)

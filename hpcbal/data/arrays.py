"""Arrays and elementwise operations that preprocessors and trainers share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Affine:
    """x * factor - shift, computed in `dtype` from samples of any type; with 1 and 0 it is a cast.

    Attributes:
        dtype: NumPy name of a floating-point type: that of the arithmetic and of the result.
        factor, shift: one number, or one per channel (the last axis), each exact in `dtype`.
        of: name of the array that it is for; empty for samples of one array without a name.
    """

    dtype: str
    factor: float | tuple[float, ...] = 1.0
    shift: float | tuple[float, ...] = 0.0
    of: str = ""

    def apply(self, samples: NDArray[Any]) -> NDArray[Any]:
        """The result in a new array; the argument holds one sample, or several along the first axis."""
        dtype = np.dtype(self.dtype)
        result: NDArray[Any] = np.multiply(samples, np.asarray(self.factor, dtype), dtype=dtype)
        result -= np.asarray(self.shift, dtype)
        return result

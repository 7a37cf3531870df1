"""An elementwise operation on samples that may run anywhere: on a preprocessor, or in a traced step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Affine:
    """x * factor - shift, computed in `dtype` from samples of any type; with 1 and 0 it is a cast.

    Attributes:
        dtype: NumPy name of a floating-point type: that of the arithmetic and of the result.
        factor, shift: one number, or one per channel (the last axis), each exact in `dtype`.
    """

    dtype: str
    factor: float | tuple[float, ...] = 1.0
    shift: float | tuple[float, ...] = 0.0

    def apply(self, samples: NDArray[Any]) -> NDArray[Any]:
        """The result in a new array; the argument holds one sample, or several along the first axis."""
        dtype = np.dtype(self.dtype)
        result: NDArray[Any] = np.multiply(samples, np.asarray(self.factor, dtype), dtype=dtype)
        result -= np.asarray(self.shift, dtype)
        return result

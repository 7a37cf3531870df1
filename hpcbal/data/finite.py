"""Find NaN and infinite values in samples, at a small part of the cost of preprocessing them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_FOR_DOT = 8192
"""Elements up to which a dot product is faster than looking at each value; BLAS may use threads for more."""


def is_finite(array: NDArray[Any]) -> bool:
    """Whether a floating-point array contains neither NaN nor infinities."""
    if array.size <= MOST_FOR_DOT:
        values = array.ravel()
        if math.isfinite(values.dot(values)):
            return True  # else large values may have overflowed
    return bool(np.isfinite(array).all())


def describe_nonfinite(array: NDArray[Any]) -> str:
    """How many values are NaN or infinite, for people."""
    num_nan, num_infinite = int(np.isnan(array).sum()), int(np.isinf(array).sum())
    found = [f"{num} {name}" for num, name in ((num_nan, "NaN"), (num_infinite, "infinite")) if num]
    return f"{' and '.join(found)} of {array.size} values"

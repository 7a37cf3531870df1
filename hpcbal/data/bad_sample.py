"""Samples that cannot be used, and NaN and infinite values in them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import HpcbalError


class BadSample(HpcbalError):  # noqa: N818 - a fact about data, handled, not an error of the run
    """Sample `sample_id`, found at `where` (such as a file name), cannot be used, for `reason`."""

    def __init__(self, sample_id: int, where: str, reason: str) -> None:
        self.sample_id = sample_id
        self.where = where
        self.reason = reason
        super().__init__(sample_id, where, reason)  # args: pickle passes these to __init__

    def __str__(self) -> str:
        return f"sample {self.sample_id} ({self.where}): {self.reason}"


class UnusableSampleError(HpcbalError):
    """Raised by an operation that knows the reason but not the sample; becomes a `BadSample`."""


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

"""Samples whose values are colours: bytes 0..255, or floating-point numbers 0..1."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.bad_sample import UnusableSampleError
from hpcbal.data.operations.base import OperationError, require_image
from hpcbal.data.spec import SampleSpec

_SLACK = 1e-3
"""Arithmetic before the operation may leave 0..1 by a rounding error."""


def require_pixels(name: str, spec: SampleSpec | None) -> SampleSpec:
    """Check that an operation gets images of bytes or of floating-point numbers.

    Raises:
        OperationError: if it does not.
    """
    spec = require_image(name, spec)
    if spec.dtype != "uint8" and np.dtype(spec.dtype).kind != "f":
        raise OperationError(
            f"{name}: works on images of uint8 (0..255) or floating-point numbers (0..1), got {spec}; "
            "put 'normalize: {}' before it, which maps bytes to 0..1"
        )
    return spec


def check_range(name: str, image: NDArray[Any]) -> None:
    """Check that a floating-point image lies in 0..1; to clip other numbers would destroy it.

    Raises:
        UnusableSampleError: if it does not.
    """
    if image.dtype != np.uint8:
        least, most = float(image.min()), float(image.max())
        if not (least >= -_SLACK and most <= 1.0 + _SLACK):
            raise UnusableSampleError(
                f"{name}: values from {least:.4g} to {most:.4g}, allowed: 0 to 1 in floating-point images; "
                "put the operation before a normalize with mean and std"
            )


def to_pixels(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Clip floating-point values to the range of `dtype`, and round them for bytes; `values` may change."""
    if dtype == np.uint8:
        np.rint(values, out=values)
        np.clip(values, 0.0, 255.0, out=values)
    else:
        np.clip(values, 0.0, 1.0, out=values)
    return values.astype(dtype, copy=False)

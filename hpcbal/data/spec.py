"""Specs of samples and labels: shapes, types and largest size in bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import DataError

UNBOUNDED = 0
"""`SampleSpec.max_bytes` of samples whose largest size is not known yet."""


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """One sample as an array.

    Attributes:
        shape: length of each axis, > 0; None where samples differ. Images are (height, width, channels).
        dtype: NumPy name of the element type, such as "uint8" or "float32".
        max_bytes: upper bound of the size of a sample; `UNBOUNDED` (0) only inside `hpcbal.data`, never in
            the spec of a `PreprocessedSamples`.
    """

    shape: tuple[int | None, ...]
    dtype: str
    max_bytes: int

    @classmethod
    def of(cls, shape: tuple[int | None, ...], dtype: str, max_bytes: int = UNBOUNDED) -> SampleSpec:
        """Make a spec; `max_bytes` follows from the shape if that is static.

        Args:
            shape: see the attribute.
            dtype: anything that `numpy.dtype` accepts.
            max_bytes: used only if the shape is not static.

        Raises:
            DataError: if an axis has no elements, or the type is neither numeric nor boolean.
        """
        resolved = _resolve_dtype(dtype)
        if not isinstance(shape, Iterable) or not all(_is_length(length) for length in shape):
            raise DataError(f"sample shape: got {shape!r}, allowed: lengths >= 1, or None where they differ")
        static = [length for length in shape if length is not None]
        if len(static) == len(shape):
            max_bytes = math.prod(static) * resolved.itemsize
        return cls(tuple(shape), resolved.name, max_bytes)

    @property
    def is_static(self) -> bool:
        """Whether all samples have the same shape."""
        return None not in self.shape

    @property
    def is_bounded(self) -> bool:
        """Whether `max_bytes` is known."""
        return self.max_bytes != UNBOUNDED

    def with_dtype(self, dtype: str) -> SampleSpec:
        """The same samples with another element type; `max_bytes` is scaled by the element size."""
        old, new = np.dtype(self.dtype).itemsize, _resolve_dtype(dtype).itemsize
        return SampleSpec.of(self.shape, dtype, self.max_bytes // old * new)

    def admits(self, array: NDArray[Any]) -> bool:
        """Whether `array` has the type and, on the static axes, the shape of this spec."""
        shape = array.shape
        if shape != self.shape:
            if len(shape) != len(self.shape):
                return False
            for length, promised in zip(shape, self.shape, strict=True):
                if length != promised and promised is not None:
                    return False
        return bool(array.dtype.name == self.dtype)

    def __str__(self) -> str:
        lengths = ", ".join("any" if length is None else str(length) for length in self.shape)
        return f"({lengths}) {self.dtype}"


@dataclass(frozen=True, slots=True)
class LabelSpec:
    """The label of one sample: shape () and an integer type for a class, 0 <= label < num_classes."""

    shape: tuple[int, ...] = ()
    dtype: str = "int64"

    @property
    def num_bytes(self) -> int:
        """Bytes of one label."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def is_class(self) -> bool:
        """Whether a label is one class index."""
        return self.shape == () and np.dtype(self.dtype).kind in "iu"


CLASS_LABEL = LabelSpec()
"""The label of classification: one class, as a whole number."""


def _is_length(length: object) -> bool:
    return length is None or (isinstance(length, int | np.integer) and bool(length >= 1))


def _resolve_dtype(dtype: str) -> np.dtype[Any]:
    try:
        resolved = np.dtype(dtype)
    except (TypeError, ValueError):
        raise DataError(f"sample dtype: got {dtype!r}, allowed: a NumPy type such as 'uint8'") from None
    if resolved.kind not in "biuf":
        raise DataError(f"sample dtype: got {dtype!r}, allowed: booleans, integers and floating point")
    return resolved

"""Decode only as many pixels as the next operations need: `decode`, crops, `resize` and crops as one.

libjpeg decodes a JPEG at a half, a quarter or an eighth of its size for less than the whole: a block of 8x8
pixels is stored as frequencies, and the highest ones are left out. A loop in C then makes the result, of the
part that the crops leave, from one buffer into the other.

All random numbers are drawn as the operations draw them one by one, for the size of the image in the file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.operations._resampling import resample
from hpcbal.data.operations.decode import Decode
from hpcbal.data.operations.geometry import CenterCrop, RandomCrop, Resize
from hpcbal.data.spec import SampleSpec

Crop = CenterCrop | RandomCrop


class ScaledDecode:
    """`decode`, any crops, `resize`, and any crops, for images of bytes; close to them one by one.

    Attributes:
        num_operations: how many operations of a chain it replaces.
        is_random: whether one of the crops is random.
    """

    def __init__(self, decode: Decode, before: Sequence[Crop], resize: Resize, after: Sequence[Crop]) -> None:
        self._decode = decode
        self._before, self._resize, self._after = tuple(before), resize, tuple(after)
        self.num_operations = 2 + len(before) + len(after)
        self.is_random = any(crop.is_random for crop in (*before, *after))

    @classmethod
    def of(cls, operations: Sequence[object]) -> ScaledDecode | None:
        """Return what replaces the first operations of a chain; None if they are not to be replaced."""
        if not operations or not isinstance(operations[0], Decode) or operations[0].exact:
            return None
        before = _crops(operations[1:])
        rest = operations[1 + len(before) :]
        if not rest or not isinstance(rest[0], Resize):
            return None
        return cls(operations[0], before, rest[0], _crops(rest[1:]))

    def output_spec(self, spec: SampleSpec | None) -> SampleSpec:
        """The spec after the last of the operations."""
        for operation in (self._decode, *self._before, self._resize, *self._after):
            spec = operation.output_spec(spec)
        assert spec is not None
        return spec

    def apply(self, sample: Any, rng: np.random.Generator | None) -> NDArray[Any]:
        """Make one sample from the bytes of an image file.

        Raises:
            UnusableSampleError: as the operations do one by one.
        """
        image, (height, width), scale = self._decode.shrunk(sample, self._gap)
        top = left = 0
        for crop in self._before:
            down, right = crop.place(height, width, rng)
            top, left, height, width = top + down, left + right, crop.height, crop.width
        row = column = 0
        rows, columns = self._resize.height, self._resize.width
        for crop in self._after:
            down, right = crop.place(rows, columns, rng)
            row, column, rows, columns = row + down, column + right, crop.height, crop.width
        out = np.empty((rows, columns, image.shape[2]), np.uint8)
        resample(
            image,
            *_axis(top, height, self._resize.height, scale),
            *_axis(left, width, self._resize.width, scale),
            self._resize.height,
            row,
            self._resize.width,
            column,
            out,
        )
        return out

    def _gap(self, height: int, width: int) -> float:
        """By how much an image shrinks, at least, in both directions."""
        if self._before:  # a crop that does not fit is found once the image is decoded
            height, width = self._before[-1].height, self._before[-1].width
        return min(height / self._resize.height, width / self._resize.width)


def _crops(operations: Sequence[object]) -> list[Crop]:
    """Return the crops at the start of a chain, up to the first that adds pixels."""
    crops: list[Crop] = []
    for operation in operations:
        if isinstance(operation, CenterCrop) or (isinstance(operation, RandomCrop) and not operation.padding):
            crops.append(operation)
        else:
            break
    return crops


def _axis(first: int, length: int, count: int, scale: int) -> tuple[float, float, float]:
    """Where a part of an image is in one of its axes, and half the base of the filter, in decoded pixels.

    Args:
        first, length: the part, in pixels of the file.
        count: pixels that it becomes.
        scale: pixels of the file for each decoded one.
    """
    # A triangle of half base h has the variance h**2 / 6, and the mean over `scale` pixels, which decoding
    # is about, (scale**2 - 1) / 12. Both together shall be as wide as the exact filter.
    half = max(length / count, 1.0)
    if scale > 1:
        half = math.sqrt(half**2 - (scale**2 - 1) / 2)
    return first / scale, (first + length) / scale, half / scale

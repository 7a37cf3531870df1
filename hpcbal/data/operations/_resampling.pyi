"""Resize a part of an image of bytes (C, see _resampling.c)."""

import numpy as np
from numpy.typing import NDArray

def resample(
    image: NDArray[np.uint8],
    top: float,
    bottom: float,
    half_height: float,
    left: float,
    right: float,
    half_width: float,
    height: int,
    row: int,
    width: int,
    column: int,
    out: NDArray[np.uint8],
    /,
) -> None:
    """Write a window of the image that a part of `image` becomes when it is resized to `height` x `width`.

    Each pixel is the mean of those of the part, weighted by a triangle about its own centre.

    Args:
        image: shape (rows, columns, channels), 1 or 3 channels.
        top, bottom, left, right: the part, in pixels of `image`, 0 <= top < bottom <= rows, and likewise for
            columns. Pixels that it cuts count as whole ones.
        half_height, half_width: half the bases of the triangle, in pixels of `image`, 1 to 65536.
        height, width: size of the whole result, >= 1.
        row, column: where in it the window begins, >= 0.
        out: written: the window, shape (rows, columns, channels), inside the result.

    Raises:
        ValueError: the arguments do not fit together.
        BufferError: an array is not C-contiguous, or `out` is read-only.
    """

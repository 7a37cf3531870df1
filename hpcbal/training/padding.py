"""Pad the samples of one rank's share to one length, with a mask of what is real.

Lengths are rounded up to a few per octave, so that the same shapes come again: libraries such as oneDNN and
cuDNN prepare kernels for each new shape, which may take as long as the step itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcbal.training.arrays import Array
from hpcbal.values.aligned import aligned_empty

LENGTHS_PER_OCTAVE = 8
"""Padded lengths between n and 2 n; they are at most 1/8 longer than the longest sample."""


def padded_length(length: int) -> int:
    """The least allowed length that holds `length` >= 0: 1 to 16, 18, 20, ..., 32, 36, 40, ..., 64, ..."""
    step = max(1, (1 << max(length - 1, 0).bit_length()) // (2 * LENGTHS_PER_OCTAVE))
    return -(-length // step) * step


def varying_axes(shape: Sequence[int | None]) -> tuple[int, ...]:
    """The axes of a sample whose length differs from sample to sample."""
    return tuple(axis for axis, length in enumerate(shape) if length is None)


def padded(samples: Sequence[Array], shape: Sequence[int | None], dtype: str) -> tuple[Array, Array]:
    """Samples as one array, with zeros after the end of each, and where they are real.

    Args:
        samples: n >= 1 arrays of `shape`.
        shape: of a sample; None where lengths differ.
        dtype: of the result.

    Returns:
        The samples, shape (n, *lengths): on axes that differ, the `padded_length` of the longest. And the
        mask, bool, shape (n, *lengths of the axes that differ), True within a sample.
    """
    axes = varying_axes(shape)
    lengths = [max(sample.shape[axis] for sample in samples) for axis in range(len(shape))]
    for axis in axes:
        lengths[axis] = padded_length(lengths[axis])
    x = aligned_empty((len(samples), *lengths), dtype)
    x[:] = 0
    mask = np.zeros((len(samples), *(lengths[axis] for axis in axes)), np.bool_)
    for i, sample in enumerate(samples):
        x[(i, *map(slice, sample.shape))] = sample
        mask[(i, *(slice(sample.shape[axis]) for axis in axes))] = True
    return x, mask

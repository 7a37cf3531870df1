"""Pad the samples of one rank's share to the length of its longest one, with a mask of what is real."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcbal.training.arrays import Array


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
        The samples, shape (n, *longest); and the mask, bool, shape (n, *longest lengths of the axes that
        differ), True within a sample.
    """
    longest = tuple(max(sample.shape[axis] for sample in samples) for axis in range(len(shape)))
    axes = varying_axes(shape)
    x = np.zeros((len(samples), *longest), dtype)
    mask = np.zeros((len(samples), *(longest[axis] for axis in axes)), np.bool_)
    for i, sample in enumerate(samples):
        x[(i, *map(slice, sample.shape))] = sample
        mask[(i, *(slice(sample.shape[axis]) for axis in axes))] = True
    return x, mask

"""Arrange the samples of one rank's share: padded to one length, with channels first, or in slices.

Lengths are rounded up to a few per octave, so that the same shapes come again: libraries such as oneDNN and
cuDNN prepare kernels for each new shape, which may take as long as the step itself. A limit of work cuts the
lengths: where sizes are lengths, there is then at most one more length for each number of samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hpcbal.data.arrays import aligned_empty
from hpcbal.training.backend import Batch
from hpcbal.training.weights import Array

IMAGE_RANK = 3
"""Axes of an image: (height, width, channels) in the data plane, (channels, height, width) in a module."""


def module_shape(shape: Sequence[int | None]) -> tuple[int | None, ...]:
    """The shape of one sample as a module of PyTorch gets it: images have their channels first."""
    sample = tuple(shape)
    return (sample[-1], *sample[:-1]) if len(sample) == IMAGE_RANK else sample


LENGTHS_PER_OCTAVE = 8
"""Padded lengths between n and 2 n; they are at most 1/8 longer than the longest sample."""

_ROUNDING = 1 + 1e-12
"""A product just below a whole number counts as that number."""


def padded_length(length: int, limit: float = math.inf) -> int:
    """The least allowed length that holds `length` >= 0: 1 to 16, 18, 20, ..., 32, 36, 40, ..., 64, ...

    Args:
        limit: the result is at most `length * limit`, but never below `length`.
    """
    step = max(1, (1 << max(length - 1, 0).bit_length()) // (2 * LENGTHS_PER_OCTAVE))
    rounded = -(-length // step) * step
    return rounded if math.isinf(limit) else max(length, min(rounded, int(length * limit * _ROUNDING)))


def varying_axes(shape: Sequence[int | None]) -> tuple[int, ...]:
    """The axes of a sample whose length differs from sample to sample."""
    return tuple(axis for axis, length in enumerate(shape) if length is None)


def padded(
    samples: Sequence[Array], shape: Sequence[int | None], dtype: str, limit: float = math.inf
) -> tuple[Array, Array]:
    """Samples as one array, with zeros after the end of each, and where they are real.

    Args:
        samples: n >= 1 arrays of `shape`.
        shape: of a sample; None where lengths differ.
        dtype: of the result.
        limit: rounding up multiplies the size of the result by at most this, if it is >= 1.

    Returns:
        The samples, shape (n, *lengths): on axes that differ, the `padded_length` of the longest. And the
        mask, bool, shape (n, *lengths of the axes that differ), True within a sample.
    """
    axes = varying_axes(shape)
    lengths = [max(sample.shape[axis] for sample in samples) for axis in range(len(shape))]
    for axis in axes:
        longest = lengths[axis]
        lengths[axis] = padded_length(longest, limit)
        limit *= longest / max(lengths[axis], 1)
    x = aligned_empty((len(samples), *lengths), dtype)
    x[:] = 0
    mask = np.zeros((len(samples), *(lengths[axis] for axis in axes)), np.bool_)
    for i, sample in enumerate(samples):
        x[(i, *map(slice, sample.shape))] = sample
        mask[(i, *(slice(sample.shape[axis]) for axis in axes))] = True
    return x, mask


@dataclass(frozen=True, slots=True)
class _Slice:
    """Neighbours in a batch; see `hpcbal.training.backend.Batch`."""

    ids: Array
    x: Array | list[Array]
    y: Array
    work: float
    padding_limit: float


def slices_of(batch: Batch, number: int) -> Iterator[Batch]:
    """Yield the samples of a batch in order, in slices whose sizes differ by at most one.

    What the slices add to a step are the parts of a sum, as those of ranks are.

    Args:
        batch: at least one sample.
        number: of slices, >= 1; no slice is empty, so a batch of fewer samples has fewer slices.
    """
    size = len(batch.ids)
    number = min(number, size)
    if number == 1:
        yield batch
        return
    for index in range(number):
        start, stop = index * size // number, (index + 1) * size // number
        yield _Slice(
            batch.ids[start:stop],
            batch.x[start:stop],
            batch.y[start:stop],
            batch.work * (stop - start) / size,
            batch.padding_limit,
        )

"""The order of the axes of a sample in the data plane, and in modules of PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

IMAGE_RANK = 3
"""Axes of an image: (height, width, channels) in the data plane, (channels, height, width) in a module."""


def module_shape(shape: Sequence[int | None]) -> tuple[int | None, ...]:
    """The shape of one sample as a module of PyTorch gets it: images have their channels first."""
    sample = tuple(shape)
    return (sample[-1], *sample[:-1]) if len(sample) == IMAGE_RANK else sample

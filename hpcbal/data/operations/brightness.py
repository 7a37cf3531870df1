"""Make images brighter or darker, and their contrast stronger or weaker, at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.operations.base import OperationError, is_number
from hpcbal.data.operations.pixels import check_range, require_pixels, to_pixels
from hpcbal.data.spec import SampleSpec


@dataclass(frozen=True, slots=True)
class RandomBrightness:
    """Adds one number to all values of an image; not in validation.

    It is drawn evenly from -factor..factor, in units of the whole range (255 for bytes, 1 for floating-point
    numbers); results are clipped to the range. The same as `keras.layers.RandomBrightness`.

    Attributes:
        factor: 0 < factor <= 1; with 1, an image may become black or white.
    """

    name: ClassVar[str] = "random_brightness"
    is_random: ClassVar[bool] = True

    factor: float

    def __post_init__(self) -> None:
        _check_factor(self.name, self.factor)

    def output_spec(self, spec: SampleSpec | None) -> SampleSpec:
        """The same images."""
        return require_pixels(self.name, spec)

    def apply(self, sample: NDArray[Any], rng: np.random.Generator | None) -> NDArray[Any]:
        """Change one image (height, width, channels)."""
        if rng is None:
            return sample
        check_range(self.name, sample)
        delta = float(rng.uniform(-self.factor, self.factor))
        if sample.dtype != np.uint8:
            return to_pixels(sample + delta, sample.dtype)
        shift = round(255 * delta)  # bytes stay bytes: clip first, then add
        if shift >= 0:
            return np.minimum(sample, 255 - shift) + np.uint8(shift)
        return np.maximum(sample, -shift) - np.uint8(-shift)


@dataclass(frozen=True, slots=True)
class RandomContrast:
    """Stretches the values of an image about the mean of each channel; not in validation.

    The factor is drawn evenly from 1-factor..1+factor; results are clipped to 0..255 for bytes, and to 0..1
    for floating-point numbers. The same as `keras.layers.RandomContrast`.

    Attributes:
        factor: 0 < factor <= 1; with 1, an image may become uniform.
    """

    name: ClassVar[str] = "random_contrast"
    is_random: ClassVar[bool] = True

    factor: float

    def __post_init__(self) -> None:
        _check_factor(self.name, self.factor)

    def output_spec(self, spec: SampleSpec | None) -> SampleSpec:
        """The same images."""
        return require_pixels(self.name, spec)

    def apply(self, sample: NDArray[Any], rng: np.random.Generator | None) -> NDArray[Any]:
        """Change one image (height, width, channels)."""
        if rng is None:
            return sample
        check_range(self.name, sample)
        factor = float(rng.uniform(1.0 - self.factor, 1.0 + self.factor))
        dtype = np.result_type(sample.dtype, np.float32)
        values = np.multiply(sample, factor, dtype=dtype)
        # Row by row: NumPy adds along a last axis of three numbers twenty times as slowly.
        mean = sample.mean(axis=0, dtype=dtype).mean(axis=0)  # (channels,)
        values += mean * dtype.type(1.0 - factor)
        return to_pixels(values, sample.dtype)


def _check_factor(name: str, value: object) -> None:
    if not is_number(value) or not 0 < value <= 1:  # type: ignore[operator]
        raise OperationError(f"{name}.factor: got {value!r}, allowed: a number above 0, at most 1")

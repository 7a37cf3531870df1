"""Operations on colours: brightness, contrast, colour jitter, normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.config.schema import operations
from hpcbal.data.arrays import Affine
from hpcbal.data.dataset import UnusableSampleError
from hpcbal.data.operations.base import OperationError, OwnOperation, require_array, require_image
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


class RandomBrightness(OwnOperation, operations.RandomBrightnessArgs):
    """Adds one number to all values of an image; not in validation.

    It is drawn evenly from -factor..factor, in units of the whole range (255 for bytes, 1 for floating-point
    numbers); results are clipped to the range. The same as `keras.layers.RandomBrightness`.
    """

    name = "random_brightness"
    is_random = True

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


class RandomContrast(OwnOperation, operations.RandomContrastArgs):
    """Stretches the values of an image about the mean of each channel; not in validation.

    The factor is drawn evenly from 1-factor..1+factor; results are clipped to 0..255 for bytes, and to 0..1
    for floating-point numbers. The same as `keras.layers.RandomContrast`.
    """

    name = "random_contrast"
    is_random = True

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


_GRAY = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the luma of ITU-R BT.601, which Pillow uses too."""


class ColorJitter(OwnOperation, operations.ColorJitterArgs):
    """Changes each given property by a random amount, in random order; not in validation.

    Arguments and ranges are those of `torchvision.transforms.ColorJitter`; 0 leaves a property as it is.
    Bytes are changed by Pillow, as torchvision does with Pillow images; floating-point numbers 0..1 by the
    same formulas without rounding.
    """

    name = "color_jitter"
    is_random = True

    def output_spec(self, spec: SampleSpec | None) -> SampleSpec:
        """The same images: gray (one channel) or RGB (three)."""
        spec = require_pixels(self.name, spec)
        if spec.shape[2] not in (1, 3):
            raise OperationError(f"{self.name}: needs images with 1 or 3 channels, got {spec}")
        if spec.shape[2] == 1 and (self.saturation or self.hue):
            raise OperationError(
                f"{self.name}: saturation and hue need images with 3 channels, got {spec}; set both to 0"
            )
        return spec

    def apply(self, sample: NDArray[Any], rng: np.random.Generator | None) -> NDArray[Any]:
        """Change one image (height, width, channels)."""
        if rng is None:
            return sample
        check_range(self.name, sample)
        changes = self._draw(rng)
        return _of_bytes(sample, changes) if sample.dtype == np.uint8 else _of_floats(sample, changes)

    def _draw(self, rng: np.random.Generator) -> list[tuple[str, float]]:
        """(property, amount) in the order of application."""
        changes: list[tuple[str, float]] = []
        for key in ("brightness", "contrast", "saturation"):
            spread = getattr(self, key)
            if spread:
                changes.append((key, float(rng.uniform(max(0.0, 1.0 - spread), 1.0 + spread))))
        if self.hue:
            changes.append(("hue", float(rng.uniform(-self.hue, self.hue))))
        return [changes[index] for index in rng.permutation(len(changes)).tolist()]


def _of_bytes(sample: NDArray[np.uint8], changes: list[tuple[str, float]]) -> NDArray[np.uint8]:
    from PIL import Image, ImageEnhance

    enhance = {
        "brightness": ImageEnhance.Brightness,
        "contrast": ImageEnhance.Contrast,
        "saturation": ImageEnhance.Color,
    }
    pixels = np.ascontiguousarray(sample[:, :, 0] if sample.shape[2] == 1 else sample)
    image = Image.fromarray(pixels)
    for key, amount in changes:
        if key == "hue":
            hue, saturation, value = image.convert("HSV").split()
            shift = round(amount * 255)
            hue = hue.point([(level + shift) % 256 for level in range(256)])
            image = Image.merge("HSV", (hue, saturation, value)).convert("RGB")
        else:
            image = enhance[key](image).enhance(amount)
    return np.asarray(image).reshape(sample.shape)


def _of_floats(sample: NDArray[Any], changes: list[tuple[str, float]]) -> NDArray[Any]:
    dtype = np.result_type(sample.dtype, np.float32)
    image = sample.astype(dtype)
    for key, amount in changes:
        if key == "brightness":
            image *= amount
        elif key == "contrast":
            image = image * amount + float(_gray(image).mean()) * (1.0 - amount)
        elif key == "saturation":
            image = image * amount + _gray(image) * (1.0 - amount)
        else:
            image = _turned(image, amount)
        np.clip(image, 0.0, 1.0, out=image)
    return image.astype(sample.dtype, copy=False)


def _gray(image: NDArray[Any]) -> NDArray[Any]:
    """Gray values, (height, width, 1)."""
    if image.shape[2] == 1:
        return image
    gray: NDArray[Any] = (image @ np.array(_GRAY, image.dtype))[:, :, np.newaxis]
    return gray


def _turned(image: NDArray[Any], amount: float) -> NDArray[Any]:
    """RGB in 0..1, with the hue turned by `amount` of the colour wheel; value and saturation stay.

    The hue is where a pixel's channels lie between its least and its largest one; it is found as in
    `colorsys.rgb_to_hsv`, and channel n is largest minus spread times a ramp of period 6 that is shifted by
    5, 3 and 1 for red, green and blue.
    """
    red, green, blue = (image[:, :, channel] for channel in range(3))
    largest = image.max(axis=2)
    spread = largest - image.min(axis=2)
    divisor = np.where(spread > 0, spread, 1)  # gray pixels have no hue, and a spread of 0
    sector = np.where(
        largest == red,
        (green - blue) / divisor,
        np.where(largest == green, 2.0 + (blue - red) / divisor, 4.0 + (red - green) / divisor),
    )
    sector += 6.0 * amount
    turned = np.empty_like(image)
    for channel, shift in enumerate((5.0, 3.0, 1.0)):
        place = np.mod(sector + shift, 6.0)
        ramp = np.minimum(np.clip(place, 0.0, 1.0), np.clip(4.0 - place, 0.0, 1.0))
        turned[:, :, channel] = largest - spread * ramp
    return turned


class Normalize(OwnOperation, operations.NormalizeArgs):
    """(sample * scale - mean) / std as float32, for samples of any shape."""

    name = "normalize"

    @cached_property
    def affine(self) -> Affine:
        """The same as one multiplication and one subtraction."""
        mean, std = np.asarray(self.mean, np.float64), np.asarray(self.std, np.float64)
        factor, shift = (numbers.astype(np.float32) for numbers in (self.scale / std, mean / std))
        return Affine("float32", _plain(factor), _plain(shift))

    def output_spec(self, spec: SampleSpec | None) -> SampleSpec:
        """The same shape as float32."""
        spec = require_array(self.name, spec)
        for key, numbers in (("mean", self.mean), ("std", self.std)):
            if isinstance(numbers, Sequence) and (not spec.shape or spec.shape[-1] != len(numbers)):
                channels = spec.shape[-1] if spec.shape else "no"
                raise OperationError(
                    f"normalize.{key}: got {len(numbers)} numbers, allowed: one number, or one for each "
                    f"channel (samples are {spec}: {channels} channels)"
                )
        return spec.with_dtype("float32")

    def apply(self, sample: NDArray[Any], rng: np.random.Generator | None = None) -> NDArray[Any]:
        """Normalise one sample into a new array."""
        return self.affine.apply(sample)


def _plain(numbers: NDArray[np.floating[Any]]) -> float | tuple[float, ...]:
    return tuple(numbers.tolist()) if numbers.ndim else float(numbers)

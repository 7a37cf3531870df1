"""Change brightness, contrast, saturation and hue of images at random, in random order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.operations.base import OperationError, is_number
from hpcbal.data.operations.pixels import check_range, require_pixels
from hpcbal.data.spec import SampleSpec

_GRAY = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the luma of ITU-R BT.601, which Pillow uses too."""


@dataclass(frozen=True, slots=True)
class ColorJitter:
    """Changes each given property by a random amount, in random order; not in validation.

    Arguments and ranges are those of `torchvision.transforms.ColorJitter`; 0 leaves a property as it is.
    Bytes are changed by Pillow, as torchvision does with Pillow images; floating-point numbers 0..1 by the
    same formulas without rounding.

    Attributes:
        brightness: all values are multiplied by a number from max(0, 1-brightness)..1+brightness.
        contrast: values are stretched about the image's mean gray value by a factor from such a range.
        saturation: values are stretched about the pixel's gray value by a factor from such a range.
        hue: colours are turned by -hue..hue of the colour wheel, 0 <= hue <= 0.5.
    """

    name: ClassVar[str] = "color_jitter"
    is_random: ClassVar[bool] = True

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0

    def __post_init__(self) -> None:
        for key in ("brightness", "contrast", "saturation"):
            value = getattr(self, key)
            if not is_number(value) or value < 0:
                raise OperationError(f"{self.name}.{key}: got {value!r}, allowed: a number, 0 or more")
        if not is_number(self.hue) or not 0 <= self.hue <= 0.5:
            raise OperationError(f"{self.name}.hue: got {self.hue!r}, allowed: a number from 0 to 0.5")
        if not (self.brightness or self.contrast or self.saturation or self.hue):
            raise OperationError(
                f"{self.name}: brightness, contrast, saturation and hue are all 0, allowed: at least one "
                "above 0; or remove the operation"
            )

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

"""Operations that move pixels: crops, flips, rotations, sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.config.schema import operations
from hpcbal.data.dataset import UnusableSampleError
from hpcbal.data.operations.base import OperationError, OwnOperation, require_image
from hpcbal.data.spec import SampleSpec

SUPPORTED_DTYPES = ("uint8", "float32")


def require_pillow_image(name: str, spec: SampleSpec | None) -> SampleSpec:
    """Check that samples are images of a type that Pillow can interpolate.

    Raises:
        OperationError: if they are not.
    """
    spec = require_image(name, spec)
    if spec.dtype not in SUPPORTED_DTYPES:
        raise OperationError(
            f"{name}: works on {' and '.join(SUPPORTED_DTYPES)} images, got {spec}; put normalize before it"
        )
    return spec


def through_pillow(array: NDArray[Any], change: Callable[[Any], Any]) -> NDArray[Any]:
    """Apply `change` (Pillow image -> Pillow image) to an image array.

    Args:
        array: (height, width, channels), uint8 or float32.
        change: called once for RGB, otherwise once per channel.

    Returns: (new height, new width, channels) of the same type.
    """
    from PIL import Image

    array = np.ascontiguousarray(array)
    if array.dtype == np.uint8 and array.shape[2] == 3:
        return np.asarray(change(Image.fromarray(array)))
    channels = [
        np.asarray(change(Image.fromarray(np.ascontiguousarray(array[:, :, channel]))))
        for channel in range(array.shape[2])
    ]
    return np.stack(channels, axis=2)


class RandomFlip(OwnOperation, operations.RandomFlipArgs):
    """Mirrors each allowed direction with probability 1/2; never in validation."""

    name = "random_flip"
    is_random = True

    def output_spec(self, spec: SampleSpec | None) -> SampleSpec:
        """The same images."""
        return require_image(self.name, spec)

    def apply(self, sample: NDArray[Any], rng: np.random.Generator | None) -> NDArray[Any]:
        """Mirror one image (height, width, channels); the result is a view."""
        if rng is None:
            return sample
        if self.horizontal and rng.random() < 0.5:
            sample = sample[:, ::-1]
        if self.vertical and rng.random() < 0.5:
            sample = sample[::-1]
        return sample


class CenterCrop(OwnOperation, operations.CenterCropArgs):
    """The middle of each image."""

    name = "center_crop"

    def output_spec(self, spec: SampleSpec | None) -> SampleSpec:
        """Images of the window's size; an image that is known to be smaller is an error."""
        return _crop_spec(self.name, spec, self.height, self.width, padding=0)

    def place(self, height: int, width: int, rng: np.random.Generator | None) -> tuple[int, int]:
        """The first row and column of the window in an image."""
        return _place(self, height, width, 0, None)

    def apply(self, sample: NDArray[Any], rng: np.random.Generator | None = None) -> NDArray[Any]:
        """Crop one image (height, width, channels)."""
        top, left = self.place(sample.shape[0], sample.shape[1], rng)
        return _window(sample, top, left, self.height, self.width)


class RandomCrop(OwnOperation, operations.RandomCropArgs):
    """A window at a uniformly random place in the image; the centre in validation."""

    name = "random_crop"
    is_random = True

    def output_spec(self, spec: SampleSpec | None) -> SampleSpec:
        """Images of the window's size; an image known to be smaller, even with padding, is an error."""
        return _crop_spec(self.name, spec, self.height, self.width, self.padding)

    def place(self, height: int, width: int, rng: np.random.Generator | None) -> tuple[int, int]:
        """Draw the first row and column of the window in an image; outside of it with padding."""
        return _place(self, height, width, self.padding, rng)

    def apply(self, sample: NDArray[Any], rng: np.random.Generator | None) -> NDArray[Any]:
        """Crop one image (height, width, channels)."""
        top, left = self.place(sample.shape[0], sample.shape[1], rng)
        return _window(sample, top, left, self.height, self.width)


def _crop_spec(name: str, spec: SampleSpec | None, height: int, width: int, padding: int) -> SampleSpec:
    spec = require_image(name, spec)
    for key, wanted, given in (("height", height, spec.shape[0]), ("width", width, spec.shape[1])):
        if given is not None and wanted > given + 2 * padding:
            raise OperationError(
                f"{name}.{key}: got {wanted}, allowed: at most {given + 2 * padding} "
                f"(images of {given} with padding {padding} on both sides); resize first, or crop less"
            )
    return SampleSpec.of((height, width, spec.shape[2]), spec.dtype)


def _place(
    crop: CenterCrop | RandomCrop, height: int, width: int, padding: int, rng: np.random.Generator | None
) -> tuple[int, int]:
    spare_rows = height + 2 * padding - crop.height
    spare_columns = width + 2 * padding - crop.width
    if spare_rows < 0 or spare_columns < 0:
        raise UnusableSampleError(
            f"{height}x{width} pixels are too few for {crop.name} {crop.height}x{crop.width} "
            f"with padding {padding}"
        )
    if rng is None:
        return spare_rows // 2 - padding, spare_columns // 2 - padding
    return int(rng.integers(spare_rows + 1)) - padding, int(rng.integers(spare_columns + 1)) - padding


def _window(image: NDArray[Any], top: int, left: int, height: int, width: int) -> NDArray[Any]:
    """The window that starts at (top, left), possibly outside the image; zeros where there is no image."""
    bottom, right = top + height, left + width
    if top >= 0 and left >= 0 and bottom <= image.shape[0] and right <= image.shape[1]:
        return image[top:bottom, left:right]
    window = np.zeros((height, width, image.shape[2]), image.dtype)
    inside = image[max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
    row, column = max(-top, 0), max(-left, 0)
    window[row : row + inside.shape[0], column : column + inside.shape[1]] = inside
    return window


class RandomRotation(OwnOperation, operations.RandomRotationArgs):
    """Rotates about the centre by an angle drawn evenly from -degrees..degrees; not in validation.

    The size stays the same, corners outside the image become zero, pixels are interpolated bilinearly.
    """

    name = "random_rotation"
    is_random = True

    def output_spec(self, spec: SampleSpec | None) -> SampleSpec:
        """The same images."""
        return require_pillow_image(self.name, spec)

    def apply(self, sample: NDArray[Any], rng: np.random.Generator | None) -> NDArray[Any]:
        """Rotate one image (height, width, channels)."""
        from PIL import Image

        if rng is None:
            return sample
        angle = float(rng.uniform(-self.degrees, self.degrees))
        return through_pillow(sample, lambda image: image.rotate(angle, Image.Resampling.BILINEAR))


class Resize(OwnOperation, operations.ResizeArgs):
    """Bilinear, with a filter that widens when images shrink (no aliasing); ignores the aspect ratio."""

    name = "resize"

    def output_spec(self, spec: SampleSpec | None) -> SampleSpec:
        """Images of one size."""
        spec = require_pillow_image(self.name, spec)
        return SampleSpec.of((self.height, self.width, spec.shape[2]), spec.dtype)

    def apply(self, sample: NDArray[Any], rng: np.random.Generator | None = None) -> NDArray[Any]:
        """Resize one image (height, width, channels)."""
        from PIL import Image

        if sample.shape[:2] == (self.height, self.width):
            return sample
        size = (self.width, self.height)  # Pillow counts x first
        return through_pillow(sample, lambda image: image.resize(size, Image.Resampling.BILINEAR))

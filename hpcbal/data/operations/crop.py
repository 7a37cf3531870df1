"""Cut a window of fixed size out of images: at the centre, or at random after padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.bad_sample import UnusableSampleError
from hpcbal.data.operations.base import OperationError, check_count, require_image
from hpcbal.data.spec import SampleSpec


@dataclass(frozen=True, slots=True)
class CenterCrop:
    """The middle of each image.

    Attributes:
        height: pixels, >= 1.
        width: pixels, >= 1.
    """

    name: ClassVar[str] = "center_crop"
    is_random: ClassVar[bool] = False

    height: int
    width: int

    def __post_init__(self) -> None:
        check_count(self.name, "height", self.height)
        check_count(self.name, "width", self.width)

    def output_spec(self, spec: SampleSpec | None) -> SampleSpec:
        """Images of the window's size; an image that is known to be smaller is an error."""
        return _crop_spec(self.name, spec, self.height, self.width, padding=0)

    def apply(self, sample: NDArray[Any], rng: np.random.Generator | None = None) -> NDArray[Any]:
        """Crop one image (height, width, channels)."""
        return _crop(sample, self.height, self.width, 0, None, self.name)


@dataclass(frozen=True, slots=True)
class RandomCrop:
    """A window at a uniformly random place in the image; the centre in validation.

    Attributes:
        height: pixels, >= 1.
        width: pixels, >= 1.
        padding: rows and columns of zeros added around the image first, >= 0.
    """

    name: ClassVar[str] = "random_crop"
    is_random: ClassVar[bool] = True

    height: int
    width: int
    padding: int = 0

    def __post_init__(self) -> None:
        check_count(self.name, "height", self.height)
        check_count(self.name, "width", self.width)
        check_count(self.name, "padding", self.padding, minimum=0)

    def output_spec(self, spec: SampleSpec | None) -> SampleSpec:
        """Images of the window's size; an image known to be smaller, even with padding, is an error."""
        return _crop_spec(self.name, spec, self.height, self.width, self.padding)

    def apply(self, sample: NDArray[Any], rng: np.random.Generator | None) -> NDArray[Any]:
        """Crop one image (height, width, channels)."""
        return _crop(sample, self.height, self.width, self.padding, rng, self.name)


def _crop_spec(name: str, spec: SampleSpec | None, height: int, width: int, padding: int) -> SampleSpec:
    spec = require_image(name, spec)
    for key, wanted, given in (("height", height, spec.shape[0]), ("width", width, spec.shape[1])):
        if given is not None and wanted > given + 2 * padding:
            raise OperationError(
                f"{name}.{key}: got {wanted}, allowed: at most {given + 2 * padding} "
                f"(images of {given} with padding {padding} on both sides); resize first, or crop less"
            )
    return SampleSpec.of((height, width, spec.shape[2]), spec.dtype)


def _crop(
    image: NDArray[Any], height: int, width: int, padding: int, rng: np.random.Generator | None, name: str
) -> NDArray[Any]:
    spare_rows = image.shape[0] + 2 * padding - height
    spare_columns = image.shape[1] + 2 * padding - width
    if spare_rows < 0 or spare_columns < 0:
        raise UnusableSampleError(
            f"{image.shape[0]}x{image.shape[1]} pixels are too few for {name} {height}x{width} "
            f"with padding {padding}"
        )
    if rng is None:
        top, left = spare_rows // 2, spare_columns // 2
    else:
        top, left = int(rng.integers(spare_rows + 1)), int(rng.integers(spare_columns + 1))
    return _window(image, top - padding, left - padding, height, width)


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

"""Rotate images by a random angle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.operations.base import OperationError, is_number
from hpcbal.data.operations.pillow_images import require_pillow_image, through_pillow
from hpcbal.data.spec import SampleSpec


@dataclass(frozen=True, slots=True)
class RandomRotation:
    """Rotates about the centre by an angle drawn evenly from -degrees..degrees; not in validation.

    The size stays the same, corners outside the image become zero, pixels are interpolated bilinearly.

    Attributes:
        degrees: largest angle, 0 < degrees <= 180.
    """

    name: ClassVar[str] = "random_rotation"
    is_random: ClassVar[bool] = True

    degrees: float

    def __post_init__(self) -> None:
        if not is_number(self.degrees) or not 0 < self.degrees <= 180:
            raise OperationError(
                f"random_rotation.degrees: got {self.degrees!r}, allowed: a number above 0, at most 180"
            )

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

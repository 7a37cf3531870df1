"""Resize images to one height and width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.operations.base import check_count
from hpcbal.data.operations.pillow_images import require_pillow_image, through_pillow
from hpcbal.data.spec import SampleSpec


@dataclass(frozen=True, slots=True)
class Resize:
    """Bilinear, with a filter that widens when images shrink (no aliasing); ignores the aspect ratio.

    Attributes:
        height: pixels, >= 1.
        width: pixels, >= 1.
    """

    name: ClassVar[str] = "resize"
    is_random: ClassVar[bool] = False

    height: int
    width: int

    def __post_init__(self) -> None:
        check_count(self.name, "height", self.height)
        check_count(self.name, "width", self.width)

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

"""Mirror images at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.operations.base import OperationError, check_flag, require_image
from hpcbal.data.spec import SampleSpec


@dataclass(frozen=True, slots=True)
class RandomFlip:
    """Mirrors each allowed direction with probability 1/2; never in validation.

    Attributes:
        horizontal: swap left and right.
        vertical: swap top and bottom.
    """

    name: ClassVar[str] = "random_flip"
    is_random: ClassVar[bool] = True

    horizontal: bool = True
    vertical: bool = False

    def __post_init__(self) -> None:
        check_flag(self.name, "horizontal", self.horizontal)
        check_flag(self.name, "vertical", self.vertical)
        if not (self.horizontal or self.vertical):
            raise OperationError(
                "random_flip: got horizontal and vertical both false, allowed: at least one true; "
                "or remove the operation"
            )

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

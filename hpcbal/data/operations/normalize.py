"""Scale and shift samples to about zero mean and unit spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.operations.base import OperationError, is_number, require_array
from hpcbal.data.spec import SampleSpec
from hpcbal.values.affine import Affine


@dataclass(frozen=True, slots=True)
class Normalize:
    """(sample * scale - mean) / std as float32, for samples of any shape.

    Attributes:
        mean: one number, or one per channel (the last axis).
        std: one number > 0, or one per channel.
        scale: applied first, > 0; the default maps bytes to 0..1.
        affine: the same as one multiplication and one subtraction.
    """

    name: ClassVar[str] = "normalize"
    is_random: ClassVar[bool] = False

    mean: float | Sequence[float] = 0.0
    std: float | Sequence[float] = 1.0
    scale: float = 1 / 255
    affine: Affine = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        mean = _numbers("mean", self.mean)
        std = _numbers("std", self.std)
        if (std <= 0).any():
            raise OperationError(f"normalize.std: got {self.std!r}, allowed: numbers > 0")
        if not is_number(self.scale) or self.scale <= 0:
            raise OperationError(f"normalize.scale: got {self.scale!r}, allowed: a number > 0")
        if mean.ndim and std.ndim and mean.size != std.size:
            raise OperationError(
                f"normalize: got {mean.size} numbers in mean and {std.size} in std, "
                "allowed: as many as there are channels, or one number for all"
            )
        # One spelling of equal numbers (0, 0.0, [0]) gives one repr, and so one fingerprint of the data.
        object.__setattr__(self, "mean", _plain(mean))
        object.__setattr__(self, "std", _plain(std))
        factor, shift = (numbers.astype(np.float32) for numbers in (self.scale / std, mean / std))
        object.__setattr__(self, "affine", Affine("float32", _plain(factor), _plain(shift)))

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


def _numbers(key: str, value: object) -> NDArray[np.float64]:
    if is_number(value):
        return np.asarray(value, np.float64)
    if isinstance(value, Sequence) and value and all(is_number(item) for item in value):
        return np.asarray(value, np.float64)
    raise OperationError(f"normalize.{key}: got {value!r}, allowed: a number, or a list of one per channel")

"""Operations that cover a part of an image, or mix two samples into one."""

from __future__ import annotations

import abc
import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hpcbal.config.schema import operations
from hpcbal.data.operations.base import OperationError, OwnOperation, require_array, require_image
from hpcbal.data.spec import SampleSpec

_ATTEMPTS = 10
"""Rectangles drawn before an image is left as it is, because none of them fits; as in torchvision."""


class RandomErasing(OwnOperation, operations.RandomErasingArgs):
    """Covers a rectangle at a random place, with probability p; not in validation.

    Arguments, ranges and defaults are those of `torchvision.transforms.RandomErasing`.
    """

    name = "random_erasing"
    is_random = True

    def output_spec(self, spec: SampleSpec | None) -> SampleSpec:
        """The same images, of any type that holds `value`."""
        spec = require_image(self.name, spec)
        with np.errstate(over="ignore", invalid="ignore"):
            covered = np.float64(self.value).astype(spec.dtype)
        if not np.isfinite(covered) or (np.dtype(spec.dtype).kind != "f" and covered != self.value):
            raise OperationError(f"{self.name}.value: got {self.value:g}, allowed: a value of {spec.dtype}")
        return spec

    def apply(self, sample: NDArray[Any], rng: np.random.Generator | None) -> NDArray[Any]:
        """Cover a part of one image (height, width, channels)."""
        if rng is None or rng.random() >= self.p:
            return sample
        height, width = sample.shape[:2]
        for _ in range(_ATTEMPTS):
            area = height * width * rng.uniform(self.scale[0], self.scale[1])
            ratio = math.exp(rng.uniform(math.log(self.ratio[0]), math.log(self.ratio[1])))
            rows, columns = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < rows < height and 0 < columns < width:
                top = int(rng.integers(height - rows + 1))
                left = int(rng.integers(width - columns + 1))
                return _covered(sample, top, left, rows, columns, self.value)
        return sample


class Cutout(OwnOperation, operations.CutoutArgs):
    """Covers a square with zeros in every image; not in validation.

    The centre of the square is any pixel, so parts of it may lie outside the image.

    Source: [CUTOUT] Sec. 3.2.
    """

    name = "cutout"
    is_random = True

    def output_spec(self, spec: SampleSpec | None) -> SampleSpec:
        """The same images."""
        return require_image(self.name, spec)

    def apply(self, sample: NDArray[Any], rng: np.random.Generator | None) -> NDArray[Any]:
        """Cover a part of one image (height, width, channels)."""
        if rng is None:
            return sample
        top = int(rng.integers(sample.shape[0])) - self.size // 2
        left = int(rng.integers(sample.shape[1])) - self.size // 2
        bottom, right = top + self.size, left + self.size
        top, left = max(top, 0), max(left, 0)
        return _covered(sample, top, left, bottom - top, right - left, 0.0)


def _covered(image: NDArray[Any], top: int, left: int, rows: int, columns: int, value: float) -> NDArray[Any]:
    covered = image.copy()
    covered[top : top + rows, left : left + columns] = value
    return covered


class MixingOperation(abc.ABC):
    """An operation on pairs of training samples, after the operations on single ones.

    Attributes:
        alpha: parameter of the beta distribution that weights are drawn from, > 0; small ones draw weights
            near 0 and 1.
        p: probability that a sample is mixed, 0 < p <= 1.
        is_even: whether the weight is that of each place of a sample, so that labels of places can be mixed.
    """

    __slots__ = ()

    name: ClassVar[str]
    is_random: ClassVar[bool] = True
    is_even: ClassVar[bool] = True

    alpha: float
    p: float

    @abc.abstractmethod
    def output_spec(self, spec: SampleSpec | None) -> SampleSpec:
        """The same samples.

        Raises:
            OperationError: if they cannot be mixed.
        """

    @abc.abstractmethod
    def mix(
        self, sample: NDArray[Any], partner: NDArray[Any], rng: np.random.Generator
    ) -> tuple[NDArray[Any], float]:
        """A new sample, and the weight of `sample` in its label, 0..1.

        Args:
            sample: of the spec given to `output_spec`; not written to, like its partner.
            partner: another one.
            rng: random stream of the sample.
        """


class Mixup(OwnOperation, operations.MixupArgs, MixingOperation):
    """The weighted mean of two samples of any shape; integers are rounded.

    Source: [MIXUP] Sec. 2. Deviation: each sample has its own weight, instead of one for a batch.
    """

    name = "mixup"
    is_random = True

    def output_spec(self, spec: SampleSpec | None) -> SampleSpec:
        spec = _of_one_shape(self.name, require_array(self.name, spec))
        if np.dtype(spec.dtype).kind == "b":
            raise OperationError(f"{self.name}: needs samples of numbers, got {spec}")
        return spec

    def mix(
        self, sample: NDArray[Any], partner: NDArray[Any], rng: np.random.Generator
    ) -> tuple[NDArray[Any], float]:
        weight = float(rng.beta(self.alpha, self.alpha))
        return weighted_mean(sample, partner, weight), weight


class CutMix(OwnOperation, operations.CutMixArgs, MixingOperation):
    """A rectangle of an image is replaced by the same place of another image.

    The weight of a label is the part of the area that is left of its image.

    Source: [CUTMIX] Sec. 3.1, Eq. 1 and 2. Deviation: as for `Mixup`.
    """

    name = "cutmix"
    is_random = True
    is_even: ClassVar[bool] = False

    def output_spec(self, spec: SampleSpec | None) -> SampleSpec:
        return _of_one_shape(self.name, require_image(self.name, spec))

    def mix(
        self, sample: NDArray[Any], partner: NDArray[Any], rng: np.random.Generator
    ) -> tuple[NDArray[Any], float]:
        height, width = sample.shape[:2]
        side = math.sqrt(1.0 - float(rng.beta(self.alpha, self.alpha)))
        rows, columns = int(height * side), int(width * side)
        top = int(rng.integers(height)) - rows // 2
        left = int(rng.integers(width)) - columns // 2
        bottom, right = min(top + rows, height), min(left + columns, width)
        top, left = max(top, 0), max(left, 0)
        mixed = sample.copy()
        mixed[top:bottom, left:right] = partner[top:bottom, left:right]
        return mixed, 1.0 - (bottom - top) * (right - left) / (height * width)


def weighted_mean(own: NDArray[Any], other: NDArray[Any], weight: float) -> NDArray[Any]:
    """`weight * own + (1 - weight) * other` in the type of `own`; integers are rounded."""
    dtype = np.result_type(own.dtype, np.float32)
    mean: NDArray[Any] = np.multiply(own, dtype.type(weight), dtype=dtype)
    mean += np.multiply(other, dtype.type(1.0 - weight), dtype=dtype)
    if own.dtype.kind in "iu":
        np.rint(mean, out=mean)
    return mean.astype(own.dtype, copy=False)


def _of_one_shape(name: str, spec: SampleSpec) -> SampleSpec:
    if not spec.is_static:
        raise OperationError(
            f"{name}: needs samples of one shape, got {spec}; make them equal first, with resize or a crop "
            "for images, or remove it"
        )
    return spec

"""Mix two training samples into one, as a weighted mean or as a part of one image in the other."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.operations.base import OperationError, is_number, require_array, require_image
from hpcbal.data.spec import SampleSpec


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


@dataclass(frozen=True, slots=True)
class Mixup(MixingOperation):
    """The weighted mean of two samples of any shape; integers are rounded.

    Source: [MIXUP] Sec. 2. Deviation: each sample has its own weight, instead of one for a batch.
    """

    name: ClassVar[str] = "mixup"

    alpha: float = 0.2
    p: float = 1.0

    def __post_init__(self) -> None:
        _check(self)

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


@dataclass(frozen=True, slots=True)
class CutMix(MixingOperation):
    """A rectangle of an image is replaced by the same place of another image.

    The weight of a label is the part of the area that is left of its image.

    Source: [CUTMIX] Sec. 3.1, Eq. 1 and 2. Deviation: as for `Mixup`.
    """

    name: ClassVar[str] = "cutmix"
    is_even: ClassVar[bool] = False

    alpha: float = 1.0
    p: float = 1.0

    def __post_init__(self) -> None:
        _check(self)

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


def _check(operation: MixingOperation) -> None:
    if not is_number(operation.alpha) or operation.alpha <= 0:
        raise OperationError(f"{operation.name}.alpha: got {operation.alpha!r}, allowed: a number above 0")
    if not is_number(operation.p) or not 0 < operation.p <= 1:
        raise OperationError(f"{operation.name}.p: got {operation.p!r}, allowed: a number above 0, at most 1")


def _of_one_shape(name: str, spec: SampleSpec) -> SampleSpec:
    if not spec.is_static:
        raise OperationError(
            f"{name}: needs samples of one shape, got {spec}; make them equal first, with resize or a crop "
            "for images, or remove it"
        )
    return spec

"""The protocol of preprocessing operations, and the argument checks that all operations share."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.spec import SampleSpec
from hpcbal.errors import InputError
from hpcbal.values.arrays import Affine


class OperationError(InputError):
    """An operation got a wrong argument, or samples that it does not support."""


class Operation(Protocol):
    """One step of the preprocessing: a value without state, so every process computes the same."""

    @property
    def is_random(self) -> bool:
        """Whether training samples differ from pass to pass."""
        ...

    def output_spec(self, spec: SampleSpec | None) -> SampleSpec:
        """The output for samples of `spec` (None: encoded images).

        Raises:
            OperationError: if the operation does not support such samples.
        """
        ...

    def apply(self, sample: Any, rng: np.random.Generator | None) -> NDArray[Any]:
        """Return the changed sample; never writes to `sample` itself.

        Args:
            sample: an array of the spec given to `output_spec` (bytes for `decode`).
            rng: the sample's random stream; None in validation: random operations then do nothing, and a
                random crop becomes a centre crop.

        Raises:
            UnusableSampleError: if this sample cannot be used.
        """
        ...


class NamedOperation(Operation, Protocol):
    """An operation that comes with hpcbal."""

    name: ClassVar[str]


@runtime_checkable
class ElementwiseOperation(Operation, Protocol):
    """An operation that changes each number on its own, so that it can also run on a whole batch."""

    @property
    def affine(self) -> Affine:
        """The whole operation."""
        ...


def require_image(name: str, spec: SampleSpec | None) -> SampleSpec:
    """Check that an operation gets images (height, width, channels) with a known number of channels."""
    spec = require_array(name, spec)
    if len(spec.shape) != 3 or spec.shape[2] is None:
        raise OperationError(f"{name}: needs images of shape (height, width, channels), got {spec}")
    return spec


def require_array(name: str, spec: SampleSpec | None) -> SampleSpec:
    """Check that an operation gets arrays."""
    if spec is None:
        raise OperationError(
            f"{name}: the dataset gives encoded images; put 'decode: {{mode: rgb}}' (or gray) first"
        )
    return spec


def check_count(name: str, key: str, value: object, minimum: int = 1) -> None:
    """Check that an argument is a whole number of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise OperationError(f"{name}.{key}: got {value!r}, allowed: a whole number >= {minimum}")


def check_flag(name: str, key: str, value: object) -> None:
    """Check that an argument is true or false."""
    if not isinstance(value, bool):
        raise OperationError(f"{name}.{key}: got {value!r}, allowed: true or false")


def is_number(value: object) -> bool:
    """Whether a value from the config is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

"""The protocol of preprocessing operations, and the checks of samples that all operations share."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from hpcbal.config.schema.section import CUSTOM_ERROR, Section
from hpcbal.config.source.meant import did_you_mean
from hpcbal.data.arrays import Affine
from hpcbal.data.spec import SampleSpec
from hpcbal.errors import InputError


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


class OwnOperation(Section):
    """An operation that comes with hpcbal: a section of the configuration, and what it does to samples.

    Its keys, their defaults and the values allowed are declared once, in `hpcbal.config.schema.operations`.

    Raises:
        OperationError: if an argument is unknown, missing or wrong.
    """

    name: ClassVar[str]
    is_random: ClassVar[bool] = False

    def __init__(self, *args: Any, **named: Any) -> None:
        named |= zip(type(self).model_fields, args, strict=False)
        try:
            super().__init__(**named)
        except ValidationError as error:
            raise OperationError(_problem(type(self), error.errors()[0])) from None


def _problem(kind: type[OwnOperation], error: ErrorDetails) -> str:
    """Return the first thing that is wrong with the arguments of an operation, for users."""
    fields = kind.model_fields
    key = str(error["loc"][0]) if error["loc"] else str(error.get("ctx", {}).get("key", ""))
    place = f"{kind.name}.{key}" if key else kind.name
    if error["type"] == CUSTOM_ERROR:
        return f"{place}: {error['msg']}"
    if error["type"] == "missing":
        return f"{kind.name}: missing {key}"
    if key not in fields:
        return f"{place}: unknown key, allowed: {', '.join(fields)}{did_you_mean(key, list(fields))}"
    extra = fields[key].json_schema_extra
    assert isinstance(extra, dict)
    return f"{place}: got {error['input']!r}, allowed: {extra['allowed']}"


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

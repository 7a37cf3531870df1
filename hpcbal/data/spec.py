"""Specs of samples and labels: shapes, types and largest size in bytes.

A sample, or a label, of several named arrays is one record of NumPy: an array of shape () whose type has a
field for each of them. So it travels like any other array, and only both ends know its parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import DataError

UNBOUNDED = 0
"""`SampleSpec.max_bytes` of samples whose largest size is not known yet."""

UNNAMED = ""
"""The name of the only array of a sample, and of its only label, where the dataset gives none."""


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """One sample as an array.

    Attributes:
        shape: length of each axis, > 0; None where samples differ. Images are (height, width, channels).
        dtype: NumPy name of the element type, such as "uint8" or "float32".
        max_bytes: upper bound of the size of a sample; `UNBOUNDED` (0) only inside `hpcbal.data`, never in
            the spec of a `PreprocessedSamples`.
        parts: name and spec of each array of a sample of named arrays, whose shape is () and whose type is
            that of a record; empty for one array without a name.
    """

    shape: tuple[int | None, ...]
    dtype: str
    max_bytes: int
    parts: tuple[tuple[str, SampleSpec], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, shape: tuple[int | None, ...], dtype: str, max_bytes: int = UNBOUNDED) -> SampleSpec:
        """Make a spec; `max_bytes` follows from the shape if that is static.

        Args:
            shape: see the attribute.
            dtype: anything that `numpy.dtype` accepts.
            max_bytes: used only if the shape is not static.

        Raises:
            DataError: if an axis has no elements, or the type is neither numeric nor boolean.
        """
        resolved = _resolve_dtype(dtype)
        if not isinstance(shape, Iterable) or not all(_is_length(length) for length in shape):
            raise DataError(f"sample shape: got {shape!r}, allowed: lengths >= 1, or None where they differ")
        static = [length for length in shape if length is not None]
        if len(static) == len(shape):
            max_bytes = math.prod(static) * resolved.itemsize
        return cls(tuple(shape), resolved.name, max_bytes)

    @classmethod
    def of_named(cls, specs: Mapping[str, SampleSpec]) -> SampleSpec:
        """Make the spec of samples of named arrays, each of one shape.

        Args:
            specs: spec of each array, by name; at least one.
        """
        dtype = _record(specs)
        return cls((), dtype, np.dtype(dtype).itemsize, tuple(specs.items()))

    @property
    def by_name(self) -> Mapping[str, SampleSpec]:
        """The spec of each array; that of one array without a name is under `UNNAMED`."""
        return dict(self.parts) or {UNNAMED: self}

    @property
    def shapes(self) -> tuple[object, ...]:
        """The shape of a sample, or name and shape of each array."""
        return tuple((name, spec.shape) for name, spec in self.parts) or self.shape

    def packed(self, arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return the arrays of one sample, which fit their specs, as one: a new record if they have names."""
        return _packed(self, arrays)

    def unpacked(self, samples: NDArray[Any]) -> Mapping[str, NDArray[Any]]:
        """Return the arrays of a sample, or of several along the first axis, by name: views."""
        return _unpacked(self, samples)

    @property
    def is_static(self) -> bool:
        """Whether all samples have the same shape."""
        return None not in self.shape

    @property
    def is_bounded(self) -> bool:
        """Whether `max_bytes` is known."""
        return self.max_bytes != UNBOUNDED

    def with_dtype(self, dtype: str) -> SampleSpec:
        """The same samples with another element type; `max_bytes` is scaled by the element size."""
        old, new = np.dtype(self.dtype).itemsize, _resolve_dtype(dtype).itemsize
        return SampleSpec.of(self.shape, dtype, self.max_bytes // old * new)

    def admits(self, array: NDArray[Any]) -> bool:
        """Whether `array` has the type and, on the static axes, the shape of this spec."""
        shape = array.shape
        if shape != self.shape:
            if len(shape) != len(self.shape):
                return False
            for length, promised in zip(shape, self.shape, strict=True):
                if length != promised and promised is not None:
                    return False
        return bool(array.dtype.name == self.dtype)

    def __str__(self) -> str:
        if self.parts:
            return ", ".join(f"{name} {spec}" for name, spec in self.parts)
        lengths = ", ".join("any" if length is None else str(length) for length in self.shape)
        return f"({lengths}) {self.dtype}"


@dataclass(frozen=True, slots=True)
class LabelSpec:
    """The label of one sample: shape () and an integer type for a class, 0 <= label < num_classes.

    Attributes:
        shape: length of each axis, > 0.
        dtype: NumPy name of the element type.
        parts: name and spec of each label where samples have several named ones, as in `SampleSpec`.
        num_classes: of a part: number of classes, or of outputs; 0: the dataset says it.
    """

    shape: tuple[int, ...] = ()
    dtype: str = "int64"
    # Not in `repr`, so that the fingerprints of runs from before there were names stay as they are.
    parts: tuple[tuple[str, LabelSpec], ...] = field(default=(), repr=False)
    num_classes: int = field(default=0, repr=False)

    @classmethod
    def of_named(cls, specs: Mapping[str, LabelSpec]) -> LabelSpec:
        """Make the spec of several labels, by name; at least one."""
        return cls((), _record(specs), tuple(specs.items()))

    @property
    def by_name(self) -> Mapping[str, LabelSpec]:
        """The spec of each label; that of one label without a name is under `UNNAMED`."""
        return dict(self.parts) or {UNNAMED: self}

    def packed(self, arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return the labels of one sample as one array: a new record if they have names."""
        return _packed(self, arrays)

    def unpacked(self, labels: NDArray[Any]) -> Mapping[str, NDArray[Any]]:
        """Return the labels of a sample, or of several along the first axis, by name: views."""
        return _unpacked(self, labels)

    @property
    def num_bytes(self) -> int:
        """Bytes of one label."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def is_class(self) -> bool:
        """Whether a label is one class index."""
        return not self.parts and self.shape == () and np.dtype(self.dtype).kind in "iu"


def _record(specs: Mapping[str, SampleSpec] | Mapping[str, LabelSpec]) -> str:
    """Return the type of a record of arrays as NumPy reads it; its fields are called f0, f1 and so on."""
    fields = [f"{tuple(map(int, spec.shape))}{spec.dtype}" for spec in specs.values()]  # type: ignore[arg-type]
    return ", ".join(fields) + ("," if len(fields) == 1 else "")


def _packed(spec: SampleSpec | LabelSpec, arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    if not spec.parts:
        return arrays[UNNAMED]
    record = np.empty((), spec.dtype)
    for index, (name, _) in enumerate(spec.parts):
        record[f"f{index}"] = arrays[name]
    return record


def _unpacked(spec: SampleSpec | LabelSpec, array: NDArray[Any]) -> Mapping[str, NDArray[Any]]:
    if not spec.parts:
        return {UNNAMED: array}
    return {name: array[f"f{index}"] for index, (name, _) in enumerate(spec.parts)}


CLASS_LABEL = LabelSpec()
"""The label of classification: one class, as a whole number."""


def _is_length(length: object) -> bool:
    return length is None or (isinstance(length, int | np.integer) and bool(length >= 1))


def _resolve_dtype(dtype: str) -> np.dtype[Any]:
    try:
        resolved = np.dtype(dtype)
    except (TypeError, ValueError):
        raise DataError(f"sample dtype: got {dtype!r}, allowed: a NumPy type such as 'uint8'") from None
    if resolved.kind not in "biuf":
        raise DataError(f"sample dtype: got {dtype!r}, allowed: booleans, integers and floating point")
    return resolved

"""Check what a dataset's `read` returns against what the dataset promises."""

from __future__ import annotations

import reprlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.bad_sample import UnusableSampleError
from hpcbal.data.dataset import RawSample
from hpcbal.data.finite import describe_nonfinite, is_finite
from hpcbal.data.spec import LabelSpec, SampleSpec


class Promises:
    """What every return of a dataset's `read` must be: a sample and its label.

    Args:
        sample: spec of the samples; None for encoded images.
        label: spec of the labels.
        num_classes: labels that are classes are in 0..num_classes-1.
    """

    def __init__(self, sample: SampleSpec | None, label: LabelSpec, num_classes: int) -> None:
        self._sample, self._label, self._num_classes = sample, label, num_classes
        self._dtype = np.dtype(label.dtype)
        self._is_class = label.is_class

    def check(self, returned: object) -> tuple[RawSample, NDArray[Any]]:
        """Split what `read` returned into the sample, as it is, and the label, as an array of its spec.

        Raises:
            UnusableSampleError: if it is no pair, or one of them is not as promised.
        """
        if not isinstance(returned, tuple | list) or len(returned) != 2:
            lacks = " (does it lack a return?)" if returned is None else ""
            raise UnusableSampleError(
                f"read returned {kind_of(returned)}{lacks}, allowed: two values, the sample and its label"
            )
        raw, label = returned
        return self._check_raw(raw), self._check_label(label)

    def _check_raw(self, raw: RawSample) -> RawSample:
        promised = self._sample
        if promised is None:
            if isinstance(raw, bytes | bytearray | memoryview):
                return raw
            if isinstance(raw, np.ndarray) and raw.dtype == np.uint8 and raw.ndim == 1:
                return raw.tobytes()
            raise UnusableSampleError(f"read returned {kind_of(raw)}, promised: encoded image bytes")
        if not isinstance(raw, np.ndarray) or not promised.admits(raw):
            raise UnusableSampleError(f"read returned {kind_of(raw)}, promised: an array {promised}")
        return raw

    def _check_label(self, label: object) -> NDArray[Any]:
        try:
            given: NDArray[Any] = np.array(label)
        except ValueError:  # rows of different lengths
            raise self._wrong(label) from None
        if given.shape != self._label.shape:
            hint = " (the number of the class, not one-hot)" if self._is_class else ""
            raise UnusableSampleError(f"label of shape {given.shape}, promised: {self._label.shape}{hint}")
        if given.dtype.kind not in "biuf":
            raise self._wrong(given.tolist())
        if given.dtype.kind == "f" and not is_finite(given):
            raise UnusableSampleError(f"label: {describe_nonfinite(given)}")
        array = given
        if given.dtype != self._dtype:
            with np.errstate(over="ignore", invalid="ignore"):
                array = given.astype(self._dtype)
            # A type with a fraction rounds; any other must hold the same number, or 1.5 would be class 1.
            is_kept = is_finite(array) if self._dtype.kind == "f" else np.array_equal(array, given)
            if not is_kept:
                raise self._wrong(given.tolist())
        if self._is_class and not 0 <= array < self._num_classes:
            raise self._wrong(given.tolist())
        return array

    def _wrong(self, label: object) -> UnusableSampleError:
        allowed = f"{'numbers' if self._dtype.kind == 'f' else 'whole numbers'} of type {self._dtype}"
        if self._is_class:
            allowed = f"whole numbers, 0..{self._num_classes - 1}"
        return UnusableSampleError(f"label {reprlib.repr(label)}, allowed: {allowed}")


def kind_of(value: object) -> str:
    """What a value is, for people: its type, and the shape of an array."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and type {value.dtype}"
    if value is None:
        return "None"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of length {len(value)}"
    return f"a value of type {type(value).__name__}"

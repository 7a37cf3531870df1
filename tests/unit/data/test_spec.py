"""Shapes, types and bounds of samples."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from hpcbal.data import LabelSpec, SampleSpec
from hpcbal.data.spec import UNBOUNDED
from hpcbal.errors import DataError


def test_a_static_shape_determines_the_bytes() -> None:
    spec = SampleSpec.of((8, 6, 3), "float32", max_bytes=7)
    assert (spec.max_bytes, spec.is_static, spec.is_bounded) == (8 * 6 * 3 * 4, True, True)


def test_a_sample_without_axes_is_one_number() -> None:
    assert SampleSpec.of((), "int16").max_bytes == 2


def test_shapes_that_differ_need_a_bound_from_elsewhere() -> None:
    assert SampleSpec.of((None, 6), "uint8").max_bytes == UNBOUNDED
    assert not SampleSpec.of((None, 6), "uint8").is_bounded
    assert SampleSpec.of((None, 6), "uint8", 100).max_bytes == 100


def test_another_type_scales_the_bound() -> None:
    assert SampleSpec.of((None,), "uint8", 100).with_dtype("float32").max_bytes == 400
    assert SampleSpec.of((None,), "float64", 800).with_dtype("float32").max_bytes == 400
    assert SampleSpec.of((None,), "uint8").with_dtype("float32").max_bytes == UNBOUNDED


@pytest.mark.parametrize("dtype", ["nonsense", "object", "S3", "complex64"])
def test_types_other_than_numbers_are_refused(dtype: str) -> None:
    with pytest.raises(DataError, match=f"got '{dtype}', allowed"):
        SampleSpec.of((2,), dtype)


def test_an_axis_without_elements_is_refused() -> None:
    with pytest.raises(DataError, match=r"got \(2, 0\), allowed: lengths >= 1"):
        SampleSpec.of((2, 0), "uint8")


@pytest.mark.parametrize(
    ("shape", "dtype", "admitted"),
    [
        ((4, 5), "uint8", True),
        ((9, 5), "uint8", True),
        ((4, 6), "uint8", False),
        ((4, 5), "int8", False),
        ((4, 5, 1), "uint8", False),
        ((5,), "uint8", False),
    ],
)
def test_arrays_are_held_to_the_static_axes_and_the_type(
    shape: tuple[int, ...], dtype: str, admitted: bool
) -> None:
    assert SampleSpec.of((None, 5), "uint8").admits(np.zeros(shape, dtype)) is admitted


def test_specs_read_well_and_survive_pickling() -> None:
    spec = SampleSpec.of((None, 5, 3), "uint8")
    assert str(spec) == "(any, 5, 3) uint8"
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_a_label_is_a_class_unless_it_has_axes_or_fractions() -> None:
    assert LabelSpec().is_class
    assert not LabelSpec((3,), "int64").is_class
    assert not LabelSpec((), "float32").is_class
    assert LabelSpec((2, 3), "float32").num_bytes == 24

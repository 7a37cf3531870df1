"""Arrays that do not fit are named; equal arrays have equal checksums."""

from __future__ import annotations

import numpy as np
import pytest

from hpcbal.errors import CheckpointError
from hpcbal.training.arrays import check_fit, checksum, num_bytes

MODEL = {
    "weights/dense_1/kernel": np.zeros((512, 100), np.float32),
    "optimizer/iteration": np.zeros((), np.int64),
}


def test_other_shape_is_named_with_both_shapes() -> None:
    with pytest.raises(CheckpointError) as error:
        check_fit({**MODEL, "weights/dense_1/kernel": np.zeros((512, 10), np.float32)}, MODEL)
    assert str(error.value) == "/weights/dense_1/kernel has shape (512, 10), the model expects (512, 100)"


def test_other_type_is_named() -> None:
    with pytest.raises(CheckpointError, match="/optimizer/iteration has type int32, the model expects int64"):
        check_fit({**MODEL, "optimizer/iteration": np.zeros((), np.int32)}, MODEL)


def test_missing_and_unknown_arrays_are_named() -> None:
    with pytest.raises(CheckpointError, match="/optimizer/iteration is missing"):
        check_fit({"weights/dense_1/kernel": MODEL["weights/dense_1/kernel"]}, MODEL)
    with pytest.raises(CheckpointError, match="/weights/extra is not in the model"):
        check_fit({**MODEL, "weights/extra": np.zeros(1)}, MODEL)


def test_checksum_sees_every_difference_but_the_order() -> None:
    a, b = np.arange(6.0).reshape(2, 3), np.arange(3)
    start = checksum({"a": a, "b": b})
    assert checksum({"b": b, "a": a}) == start
    assert checksum({"a": np.asfortranarray(a), "b": b}) == start
    assert checksum({"a": a + 1e-15, "b": b}) != start
    assert checksum({"a": a.reshape(3, 2), "b": b}) != start
    assert checksum({"c": a, "b": b}) != start
    assert checksum({"a": a.view(np.int64), "b": b}) != start


def test_num_bytes_adds_up() -> None:
    assert num_bytes(MODEL) == 512 * 100 * 4 + 8

"""Equal arrays have equal checksums."""

from __future__ import annotations

import numpy as np

from hpcbal.training.weights import checksum, num_bytes

MODEL = {
    "weights/dense_1/kernel": np.zeros((512, 100), np.float32),
    "optimizer/iteration": np.zeros((), np.int64),
}


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

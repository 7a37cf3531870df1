"""Copies past the caches are exact at any address and of any size, and touch nothing else."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.dataplane import nontemporal

NUM_BYTES = 3 * nontemporal.MIN_BYTES
GUARD = 128


@given(
    target_at=st.integers(0, 80),
    source_at=st.integers(0, 80),
    num_bytes=st.integers(0, NUM_BYTES),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_byte_arrives_and_no_other_byte_changes(
    target_at: int, source_at: int, num_bytes: int, seed: int
):
    rng = np.random.default_rng(seed)
    source = rng.integers(0, 256, NUM_BYTES + GUARD, np.uint8)
    target = rng.integers(0, 256, NUM_BYTES + 2 * GUARD, np.uint8)
    expected = target.copy()
    expected[target_at : target_at + num_bytes] = source[source_at : source_at + num_bytes]
    nontemporal.write(target[target_at : target_at + num_bytes], source[source_at : source_at + num_bytes])
    np.testing.assert_array_equal(target, expected)


@given(
    axes=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    dtype=st.sampled_from(["bool", "uint8", "int16", "float16", "float32", "float64", "complex64"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_arrays_of_every_type_of_samples_arrive(axes: list[int], dtype: str, seed: int):
    values = np.random.default_rng(seed).integers(0, 100, axes).astype(dtype)
    target = np.zeros_like(values)
    nontemporal.write(target, values)
    np.testing.assert_array_equal(target, values)

"""The order of samples is a function of seed and pass alone, and stays so between releases."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from hpcbal.errors import PolicyError
from hpcbal.policies.folds import sample_order


def test_the_order_is_pinned() -> None:
    # A change here would give resumed runs other samples than before.
    assert sample_order(10, seed=7, pass_index=3).tolist() == [3, 5, 4, 7, 8, 0, 9, 2, 1, 6]


def test_passes_and_seeds_differ_and_repeat() -> None:
    first = sample_order(1000, 1, 0)
    assert first.dtype == np.int64
    assert np.array_equal(first, sample_order(1000, 1, 0))
    assert not np.array_equal(first, sample_order(1000, 1, 1))
    assert not np.array_equal(first, sample_order(1000, 2, 0))
    assert not np.array_equal(sample_order(1000, 0, 1), sample_order(1000, 1, 0))


@pytest.mark.parametrize("num_samples", [0, 1, 2, 997])
def test_every_sample_occurs_once(num_samples: int) -> None:
    assert np.array_equal(np.sort(sample_order(num_samples, 0, 0)), np.arange(num_samples))


def test_global_random_state_is_neither_used_nor_changed() -> None:
    before = pickle.dumps(np.random.get_state())
    sample_order(100, 0, 0)
    assert pickle.dumps(np.random.get_state()) == before


@pytest.mark.parametrize(
    ("name", "given"), [("num_samples", (-1, 0, 0)), ("seed", (1, -1, 0)), ("pass_index", (1, 0, -1))]
)
def test_a_negative_argument_is_named(name: str, given: tuple[int, int, int]) -> None:
    with pytest.raises(PolicyError, match=f"{name}: got -1"):
        sample_order(*given)

"""Draws in which all classes are equally frequent: even counts, in every pass and over all of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.errors import PolicyError
from hpcbal.policies.folds import BalancedOrder

CLASSES = np.array([0, 0, 0, 0, 0, 3, 3, 1])


def test_the_order_is_pinned() -> None:
    # A change here would give resumed runs other samples than before.
    samples, repeats = BalancedOrder(CLASSES, seed=7).of_pass(3)
    assert samples.tolist() == [3, 6, 4, 7, 5, 7, 7, 0]
    assert repeats.tolist() == [1, 4, 1, 9, 4, 10, 8, 2]


@given(
    st.lists(st.sampled_from([-1, 0, 0, 0, 0, 0, 1, 1, 4]), min_size=1, max_size=60).filter(
        lambda classes: max(classes) >= 0
    ),
    st.integers(0, 2**32),
    st.integers(0, 10),
)
def test_classes_and_samples_of_a_class_come_equally_often(classes: list[int], seed: int, first: int) -> None:
    labels = np.array(classes)
    order = BalancedOrder(labels, seed)
    passes = [order.of_pass(number)[0] for number in range(first, first + 3)]
    for drawn in (*passes, np.concatenate([order.of_pass(number)[0] for number in range(first + 1)])):
        assert (labels[drawn] >= 0).all()
        used = np.unique(labels[labels >= 0])
        by_class = np.array([(labels[drawn] == each).sum() for each in used])
        assert np.ptp(by_class) <= 1
        counts = np.bincount(drawn, minlength=len(labels))
        for each in used:
            assert np.ptp(counts[labels == each]) <= 1
    assert all(len(drawn) == len(labels) for drawn in passes)


def test_no_sample_has_two_draws_of_one_number() -> None:
    order = BalancedOrder(CLASSES, seed=0)
    draws = [pair for number in range(20) for pair in zip(*order.of_pass(number), strict=True)]
    assert len(set(draws)) == len(draws) == 20 * len(CLASSES)


def test_an_order_depends_on_seed_and_pass_alone() -> None:
    labels = np.arange(400) % 7 % 3
    first = BalancedOrder(labels, 1).of_pass(2)[0]
    np.testing.assert_array_equal(first, BalancedOrder(labels, 1).of_pass(2)[0])
    assert not np.array_equal(first, BalancedOrder(labels, 2).of_pass(2)[0])
    assert not np.array_equal(first, BalancedOrder(labels, 1).of_pass(3)[0])


def test_samples_without_a_class_are_an_error() -> None:
    with pytest.raises(PolicyError, match="no sample has a class, allowed: one or more"):
        BalancedOrder(np.array([-1, -1]), 0)

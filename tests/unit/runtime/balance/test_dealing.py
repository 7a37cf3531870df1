"""Who takes which samples of a step where they differ in size, as every rank of a group decides it."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpcbal.config.schema.ensemble import BalanceConfig
from hpcbal.policies.batching import split_evenly
from hpcbal.policies.selection import StepShares
from hpcbal.runtime.balance.dealing import Dealer, make_dealer
from hpcbal.training.groups import GroupFailed
from hpcbal.training.rank_share import padded_length


def dealt(
    sizes: list[float], weights: tuple[float, ...] = (1.0, 1.0), dealer: Dealer | None = None, **settings: Any
) -> Any:
    dealer = dealer or Dealer(BalanceConfig(**settings))
    shares = StepShares.neighbours(10, split_evenly(len(sizes), len(weights)))
    ids = 100 + np.arange(len(sizes))
    return dealer.deal(shares, ids, np.array(sizes, np.float64), weights)


def test_the_work_of_all_ranks_is_equal() -> None:
    step = dealt([8, 1, 1, 1, 1, 4], cost="sum")
    assert [step.shares.of_rank(rank).positions.tolist() for rank in (0, 1)] == [[10], [11, 12, 13, 14, 15]]
    assert step.work == pytest.approx((8 / (16 / 6),) * 2)
    assert step.weights is None


def test_work_follows_the_weights() -> None:
    step = dealt([2.0] * 12, (2.0, 1.0, 1.0))
    assert step.shares.counts == (6, 3, 3)
    assert step.work == (6.0, 3.0, 3.0)
    assert step.slowest == pytest.approx(4.0), "all finish together"


def test_padding_keeps_samples_of_similar_size_together() -> None:
    step = dealt([10, 1, 9, 1, 1, 1, 1, 1, 1, 1, 1, 1], cost="padded")
    assert step.shares.of_rank(0).positions.tolist() == [10, 12]
    assert step.work == pytest.approx((12 * 20 / 29, 12 * 10 / 29))  # in order: 60 and 6


def test_in_order_the_shares_stay_and_their_work_is_known() -> None:
    step = dealt([3, 1, 1, 1], samples="in-order", cost="sum")
    assert step.shares.selections is None
    assert step.work == pytest.approx((4 / 1.5, 2 / 1.5))
    assert step.slowest == pytest.approx(4 / 1.5)


def test_broken_samples_are_no_work() -> None:
    step = dealt([0, 5, 0, 5], cost="sum")
    assert step.work == (1.0, 1.0)
    assert sum(step.shares.counts) == 4


def test_gradients_count_by_size_if_wanted() -> None:
    step = dealt([3, 1, 1, 1], gradient_weights="size", samples="in-order")
    assert step.weights == pytest.approx((4 / 6, 2 / 6))


def test_the_unit_of_work_is_the_mean_size() -> None:
    """If it is unknown, that of the steps so far."""
    dealer = Dealer(BalanceConfig(cost="sum"))
    assert dealt([2, 2], dealer=dealer).work == (1.0, 1.0)
    assert dealt([4, 4], dealer=dealer).work == pytest.approx((4 / 3, 4 / 3))
    assert dealt([4, 4], dealer=Dealer(BalanceConfig(), mean_size=8.0)).work == (0.5, 0.5)


def test_a_sample_that_fits_on_no_slot_is_named() -> None:
    with pytest.raises(GroupFailed, match=r"sample 102 has size 9, allowed: at most 5 \(balance\.max_work"):
        dealt([1, 1, 9, 1], max_work_per_slot=5.0)


@pytest.mark.parametrize(("cost", "sizes"), [("sum", "18 in all and at most 5"), ("padded", "at most 5")])
def test_a_step_that_fits_on_no_slots_names_the_work_it_needs(cost: str, sizes: str) -> None:
    needed = 9 if cost == "sum" else 10
    text = (
        rf"a step of 4 samples with sizes of {sizes} needs {needed} of work on one of 2 slots, allowed: 8.5 "
        rf"\(balance\.max_work_per_slot\), .*{cost}\); raise that limit, use a smaller batch_size, or train "
        "the DNN on more slots$"
    )
    with pytest.raises(GroupFailed, match=text):
        dealt([5, 4, 5, 4], max_work_per_slot=8.5, cost=cost)
    dealt([5, 4, 5, 4], max_work_per_slot=float(needed), cost=cost)


def test_a_step_that_fits_but_for_the_limit_of_samples_names_that_limit_too() -> None:
    sizes: list[float] = [10, 1, 1, 1, 1, 1]
    text = (
        r"needs 30 of work on one of 2 slots, with at most 3 samples on each "
        r"\(balance\.max_samples_per_slot\), allowed: 20 .*; raise one of these limits, "
    )
    with pytest.raises(GroupFailed, match=text):
        dealt(sizes, max_work_per_slot=20.0, max_samples_per_slot=3)
    dealt(sizes, max_work_per_slot=30.0, max_samples_per_slot=3)
    dealt(sizes, max_work_per_slot=20.0, max_samples_per_slot=5)


@pytest.mark.parametrize(
    ("given", "limits"),
    [
        ({"max_work_per_slot": 30.0}, (30 / 20, 30 / 10)),
        ({}, (math.inf, math.inf)),
        ({"max_work_per_slot": 30.0, "cost": "sum"}, (math.inf, math.inf)),
    ],
)
def test_padding_may_fill_a_share_up_to_the_limit_of_work(
    given: dict[str, Any], limits: tuple[float, ...]
) -> None:
    step = dealt([10, 9, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], **given)
    assert step.padding_limits == pytest.approx(limits)
    assert dealt([0, 0], max_work_per_slot=30.0).padding_limits == (math.inf, math.inf)


@given(st.lists(st.integers(1, 200), min_size=1, max_size=40), st.floats(1.0, 1.3))
@settings(deadline=None)
def test_padding_keeps_to_the_limit_where_declared_sizes_grow_faster_than_lengths(
    lengths: list[int], room: float
) -> None:
    """As in attention, where the work of a sample is the square of its length."""
    squares = [float(length**2) for length in lengths]
    most = room * len(squares) * max(squares)
    dealer = Dealer(BalanceConfig(max_work_per_slot=most), mean_size=float(np.mean(squares)))
    (limit,) = dealt(squares, (1.0,), dealer).padding_limits
    assert len(squares) * padded_length(max(lengths), limit) ** 2 <= most


def test_equal_samples_and_lone_ranks_need_no_dealer() -> None:
    settings = BalanceConfig()
    assert make_dealer(settings, is_sized=False, num_ranks=4) is None
    assert make_dealer(settings, is_sized=True, num_ranks=1) is None
    assert make_dealer(settings, is_sized=True, num_ranks=2) is not None


def test_a_rank_alone_keeps_to_the_limit_of_work() -> None:
    dealer = make_dealer(BalanceConfig(max_work_per_slot=9.0), is_sized=True, num_ranks=1)
    assert dealt([4, 4], (1.0,), dealer).shares.counts == (2,)
    with pytest.raises(GroupFailed, match=r"at most 4 needs 12 of work on 1 slot, allowed: 9 "):
        dealt([4, 4, 4], (1.0,), dealer)


SIZES = st.lists(st.floats(0.5, 500) | st.integers(0, 40).map(float) | st.just(1e9), min_size=1, max_size=64)
WEIGHTS = st.lists(st.just(0.0) | st.floats(0.1, 10), min_size=1, max_size=6).filter(any)
COSTS, SAMPLES = st.sampled_from(["sum", "padded"]), st.sampled_from(["within-batch", "in-order"])


@given(SIZES, WEIGHTS, COSTS, SAMPLES)
@settings(deadline=None)
def test_every_sample_goes_to_one_rank(
    sizes: list[float], weights: list[float], cost: str, samples: str
) -> None:
    step = dealt(sizes, tuple(weights), cost=cost, samples=samples)
    taken = np.concatenate([step.shares.of_rank(rank).positions for rank in range(len(weights))])
    assert sorted(taken.tolist()) == list(range(10, 10 + len(sizes)))
    if cost == "sum":
        assert sum(step.work) == pytest.approx(np.count_nonzero(sizes))
    if samples == "within-batch":
        assert not any(work for work, weight in zip(step.work, weights, strict=True) if not weight)


@given(
    st.lists(st.integers(0, 200).map(float), min_size=1, max_size=40),
    WEIGHTS,
    COSTS,
    st.floats(100, 3000),
    st.none() | st.integers(1, 20),
)
@settings(deadline=None)
def test_no_rank_gets_more_than_the_limits(
    sizes: list[float], weights: list[float], cost: str, most: float, max_samples: int | None
) -> None:
    """Padding included. A step is refused only if it comes near the limits."""
    good = [size for size in sizes if size]
    slots = len(weights) - weights.count(0.0)
    try:
        step = dealt(
            sizes, tuple(weights), cost=cost, max_work_per_slot=most, max_samples_per_slot=max_samples
        )
    except GroupFailed:
        longest = max(good)
        full = most - longest if cost == "sum" else most // longest
        work = sum(good) if cost == "sum" else len(good)
        assert longest > most or max_samples is not None or work > slots * full
        return
    for rank, weight in enumerate(weights):
        own = [sizes[position - 10] for position in step.shares.of_rank(rank).positions]
        own = [int(size) for size in own if size]  # broken samples are nobody's work
        assert weight or not own
        if max_samples is not None:
            assert len(own) <= max(max_samples, -(-len(good) // slots))
        if cost == "sum":
            assert sum(own) <= most * (1 + 1e-9)
        elif own:
            assert len(own) * padded_length(max(own), step.padding_limits[rank]) <= most


@given(
    st.lists(st.integers(1, 9).map(float), min_size=1, max_size=6),
    st.lists(st.sampled_from([0.0, 1.0, 3.0]), min_size=1, max_size=3).filter(any),
    st.integers(5, 30),
    st.none() | st.integers(1, 4),
)
@settings(deadline=None)
def test_a_padded_step_is_refused_only_if_it_fits_on_no_slots(
    sizes: list[float], weights: list[float], most: int, max_samples: int | None
) -> None:
    """The oracle tries all ways to deal."""
    used = [rank for rank, weight in enumerate(weights) if weight]
    most_samples = len(sizes) if max_samples is None else max(max_samples, -(-len(sizes) // len(used)))

    def fits(ranks: tuple[int, ...]) -> bool:
        shares = [[size for size, taker in zip(sizes, ranks, strict=True) if taker == rank] for rank in used]
        return all(not own or (len(own) <= most_samples and len(own) * max(own) <= most) for own in shares)

    can_fit = any(fits(ranks) for ranks in itertools.product(used, repeat=len(sizes)))
    try:
        dealt(sizes, tuple(weights), max_work_per_slot=float(most), max_samples_per_slot=max_samples)
    except GroupFailed:
        assert not can_fit
    else:
        assert can_fit


@given(
    st.lists(st.integers(1, 9).map(float), min_size=1, max_size=12),
    st.lists(st.sampled_from([0.0, 1.0, 1.5, 3.0]), min_size=1, max_size=3).filter(any),
    st.integers(5, 30),
    st.none() | st.integers(1, 4),
)
@example([9.0, 7.0, 6.0, 5.0, 4.0, 4.0], [0.32, 0.68], 18, None)
@settings(deadline=None)
def test_a_summed_step_that_fits_on_equal_slots_fits_on_unlike_ones(
    sizes: list[float], weights: list[float], most: int, max_samples: int | None
) -> None:
    given: dict[str, Any] = {"max_work_per_slot": float(most), "max_samples_per_slot": max_samples}

    def is_refused(weights: tuple[float, ...]) -> bool:
        try:
            dealt(sizes, weights, cost="sum", **given)
        except GroupFailed:
            return True
        return False

    assert is_refused(tuple(map(bool, weights))) or not is_refused(tuple(weights))

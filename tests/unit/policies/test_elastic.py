"""Slots are shared so that the last DNN ends early: against brute force, and rule by rule."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.policies.elastic import LEAST_GAIN, Ladder, Lengths, Need, allotment, choose_slots, share_slots


@st.composite
def ladders(draw: st.DrawFn, most: int = 5) -> Ladder:
    """Of rates in any order: with steps that gain nothing, and with more than twice the rate on two slots."""
    return Ladder.of(draw(st.lists(st.floats(1.0, 100.0), min_size=1, max_size=most)))


@given(st.lists(st.floats(1.0, 100.0), min_size=1, max_size=12))
def test_a_rung_is_faster_than_the_last_one_and_no_other_number_is_as_good(rates: list[float]) -> None:
    ladder = Ladder.of(rates)
    costs = [m / rates[m - 1] for m in range(1, len(rates) + 1)]
    assert ladder.counts == tuple(sorted(set(ladder.counts)))
    assert costs[ladder.counts[0] - 1] == min(costs)
    for lower, higher in itertools.pairwise(ladder.rates):
        assert higher >= (1.0 + LEAST_GAIN) * lower
    for count in ladder.counts:
        assert ladder.rate(count) == rates[count - 1]
        better = [m for m in range(1, len(rates) + 1) if rates[m - 1] >= rates[count - 1]]
        assert costs[count - 1] == min(costs[m - 1] for m in better)
    for limit in range(1, len(rates) + 1):
        best = ladder.within(limit)
        assert 1 <= best <= limit
        if limit >= ladder.counts[0]:
            assert best in ladder.counts
        else:
            assert rates[best - 1] == max(rates[:limit])


@given(st.data(), st.integers(1, 6))
def test_no_other_numbers_of_slots_lead_to_an_earlier_end(data: st.DataObject, num_slots: int) -> None:
    """The time in which the slots can do all the work, over all combinations of rungs."""
    some = data.draw(st.lists(ladders(), min_size=1, max_size=4))
    needs = [Need(data.draw(st.floats(1.0, 1e3)), each) for each in some if each.counts[0] <= num_slots]

    def end(counts: Sequence[int]) -> float:
        seconds = [need.seconds(count) for need, count in zip(needs, counts, strict=True)]
        work = sum(s * count for s, count in zip(seconds, counts, strict=True))
        return max(*seconds, work / num_slots)

    if needs:
        possible = itertools.product(*([m for m in need.ladder.counts if m <= num_slots] for need in needs))
        assert end(allotment(needs, num_slots)) == pytest.approx(min(map(end, possible)))


@given(st.data(), st.integers(1, 12))
def test_slots_go_first_to_those_that_need_longest_and_none_is_left_that_helps(
    data: st.DataObject, num_slots: int
) -> None:
    some = data.draw(st.lists(ladders(), min_size=1, max_size=8))
    needs = {f"d{i}": Need(data.draw(st.floats(1.0, 1e3)), ladder) for i, ladder in enumerate(some)}
    shares = share_slots(needs, num_slots)
    wanted = dict(zip(needs, allotment(list(needs.values()), num_slots), strict=True))
    seconds = [needs[name].seconds(wanted[name]) for name in shares]
    assert seconds == sorted(seconds, reverse=True)
    left = num_slots - sum(shares.values())
    assert left >= 0
    for name, number in shares.items():
        ladder = needs[name].ladder
        assert left == 0 or number
        higher = [count for count in ladder.counts if number < count <= number + left]
        assert not higher or number < ladder.counts[0]


def test_while_dnns_are_many_each_has_one_slot_and_the_longest_start() -> None:
    linear = Ladder.of([10.0, 19.0, 27.0])
    needs = {name: Need(n, linear) for name, n in (("a", 300.0), ("b", 100.0), ("c", 200.0), ("d", 250.0))}
    shares = share_slots(needs, 2)
    assert list(shares.items()) == [("a", 1), ("d", 1), ("c", 0), ("b", 0)]


def test_a_long_dnn_gets_several_slots_while_short_ones_wait_for_theirs() -> None:
    linear = Ladder.of([10.0 * m * 0.98 ** (m - 1) for m in range(1, 5)])
    needs = {"long": Need(900.0, linear), **{f"short{i}": Need(100.0, linear) for i in range(3)}}
    shares = share_slots(needs, 4)
    assert shares["long"] == 3
    assert sum(shares.values()) == 4


def test_lengths_are_judged_by_those_that_have_ended() -> None:
    assert Lengths((), 0).epochs_left(0) == 2.0
    assert Lengths((), 5).epochs_left(3) == 7.0
    known = Lengths((4, 10, 12), 12)
    assert known.epochs_left(3) == pytest.approx(26 / 3 - 3)
    assert known.epochs_left(4) == 7.0
    assert known.epochs_left(11) == 1.0
    assert known.epochs_left(30) == 1.0


@given(st.data())
def test_slots_are_on_as_few_nodes_as_possible(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    node_of_slot = [node for node, size in enumerate(sizes) for _ in range(size)]
    slots = st.sampled_from(range(len(node_of_slot)))
    own, free = data.draw(st.frozensets(slots)), data.draw(st.frozensets(slots))
    free -= own
    usable = own | free
    if not usable:
        return
    number = data.draw(st.integers(1, len(usable)))
    chosen = choose_slots(number, own, free, data.draw(st.frozensets(slots)), node_of_slot)
    assert len(chosen) == len(set(chosen)) == number
    assert set(chosen) <= usable
    assert list(chosen) == sorted(chosen)
    nodes = len({node_of_slot[slot] for slot in chosen})
    fewest = next(
        k
        for k in range(1, len(sizes) + 1)
        if any(
            sum(node_of_slot[slot] in some for slot in usable) >= number
            for some in itertools.combinations(range(len(sizes)), k)
        )
    )
    assert nodes == fewest


def test_a_dnn_stays_where_it_is_or_was_built() -> None:
    node_of_slot = (0, 0, 1, 1)
    assert choose_slots(1, (3,), (0, 1), (), node_of_slot) == (3,)
    assert choose_slots(1, (), (0, 1, 2), (2,), node_of_slot) == (2,)
    assert choose_slots(2, (3,), (0, 1, 2), (), node_of_slot) == (2, 3)
    assert choose_slots(1, (), (0, 1, 2), (), node_of_slot) == (2,)  # leaves a whole node to others

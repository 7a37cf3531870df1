"""A rank's samples of a step: neighbours or any positions, each of them given to exactly one rank."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.errors import PolicyError
from hpcbal.policies.selection import Selection, StepShares


@given(st.integers(0, 50), st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_neighbours_are_dealt_out_exactly_once(start: int, counts: list[int]) -> None:
    shares = StepShares.neighbours(start, counts)
    by_rank = [shares.of_rank(rank) for rank in range(len(counts))]
    assert shares.stop == start + sum(counts)
    assert np.concatenate([own.positions for own in by_rank]).tolist() == list(range(start, shares.stop))
    assert tuple(map(len, by_rank)) == shares.counts == tuple(counts)
    assert all(own.picked is None for own in by_rank)
    assert StepShares.of(start, by_rank).counts == shares.counts


@given(st.integers(0, 50), st.lists(st.integers(0, 3), max_size=40))
def test_positions_are_dealt_out_exactly_once(start: int, rank_of: list[int]) -> None:
    shares = StepShares.dealt(start, rank_of, 4)
    by_rank = [shares.of_rank(rank) for rank in range(4)]
    dealt = np.concatenate([own.positions for own in by_rank])
    assert sorted(dealt.tolist()) == list(range(start, start + len(rank_of)))
    for rank, own in enumerate(by_rank):
        assert all(rank_of[position - start] == rank for position in own.positions)
    assert sum(shares.counts) == len(rank_of)


@given(st.sets(st.integers(0, 60)), st.integers(0, 60), st.integers(0, 20))
def test_a_selection_knows_what_of_it_lies_in_a_range(positions: set[int], start: int, length: int) -> None:
    selection = Selection.of(sorted(positions))
    inside = np.arange(start, start + length)[selection.within(start, start + length)]
    assert inside.tolist() == [p for p in sorted(positions) if start <= p < start + length]


@given(st.lists(st.sets(st.integers(0, 30)), min_size=2, max_size=2))
def test_selections_of_equal_positions_are_equal(two: list[set[int]]) -> None:
    first, second = (Selection.of(sorted(positions)) for positions in two)
    assert (first == second) == (two[0] == two[1])
    assert len(first) == len(two[0])


@pytest.mark.parametrize("picked", [[3, 2], [2, 2], [1, 5], [9]])
def test_positions_that_do_not_increase_or_lie_outside_are_refused(picked: list[int]) -> None:
    with pytest.raises(PolicyError, match="positions that increase"):
        Selection(2, 5, np.array(picked))


@pytest.mark.parametrize(
    "by_rank",
    [
        (Selection(0, 1), Selection(2, 3)),
        (Selection(0, 3), Selection(2, 3)),
        (Selection(1, 3), Selection(3, 5)),
        (Selection.of([0, 2]), Selection.of([0, 3])),
        (Selection.of([0, 2]), Selection.of([3, 5])),
    ],
)
def test_a_step_whose_positions_are_not_each_dealt_out_once_is_refused(
    by_rank: tuple[Selection, ...],
) -> None:
    with pytest.raises(PolicyError, match="each of them exactly once"):
        StepShares.of(0, by_rank)


def test_counts_that_are_not_those_of_the_selections_are_refused() -> None:
    with pytest.raises(PolicyError, match="each of them exactly once"):
        StepShares(0, (3, 1), (Selection(0, 2), Selection(2, 4)))


def test_a_rank_that_is_not_there_gets_nothing() -> None:
    with pytest.raises(PolicyError, match=r"allowed: 0\.\.1"):
        StepShares.dealt(0, [0, 2], 2)

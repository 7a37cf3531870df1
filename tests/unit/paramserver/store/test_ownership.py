"""Ownership of blocks: dealt out evenly, asked in order, changed by news."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.paramserver.store.layout import Ownership, dealt_out, dealt_out_by_table


@given(st.integers(1, 60), st.integers(1, 7))
def test_each_owner_gets_neighbours_and_shares_differ_by_one(num_blocks: int, num_ranks: int) -> None:
    ranks = [3 + rank for rank in range(num_ranks)]
    owners = dealt_out(num_blocks, ranks)
    assert len(owners) == num_blocks
    assert list(owners) == sorted(owners)
    shares = [owners.count(rank) for rank in ranks]
    assert max(shares) - min(shares) <= 1


def test_parts_are_the_blocks_of_each_owner_in_order() -> None:
    ownership = Ownership([2, 1, 2, 1])
    parts = [(owner, blocks.tolist()) for owner, blocks in ownership.parts(np.array([3, 2, 0]), 2)]
    assert parts == [(1, [3]), (2, [2, 0])]
    assert list(ownership.parts(np.array([], np.int64), 1)) == []


def test_long_parts_are_cut() -> None:
    ownership = Ownership([1, 1, 1])
    parts = [(owner, blocks.tolist()) for owner, blocks in ownership.parts(np.arange(3), 2, max_blocks=2)]
    assert parts == [(1, [0, 1]), (1, [2])]


@given(st.sets(st.integers(0, 30), min_size=2, max_size=8))
def test_workers_that_own_blocks_never_ask_the_same_owner_at_a_time(ranks: set[int]) -> None:
    ownership = Ownership(sorted(ranks))
    orders = [[owner for owner, _ in ownership.parts(np.arange(len(ranks)), rank)] for rank in ranks]
    assert all(sorted(order) == sorted(ranks) for order in orders)
    assert all(len(set(asked)) == len(ranks) for asked in zip(*orders, strict=True))
    assert all(order[-1] == rank for order, rank in zip(orders, ranks, strict=True))


def test_a_worker_that_owns_nothing_asks_in_ascending_order() -> None:
    parts = Ownership([7, 5, 6]).parts(np.arange(3), 3)
    assert [owner for owner, _ in parts] == [5, 6, 7]


def test_news_changes_the_owner_of_some_blocks() -> None:
    ownership = Ownership([1, 1, 1])
    ownership.change((0, 2), 2)
    assert ownership.owners.tolist() == [2, 1, 2]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(1, 9))
def test_every_table_is_spread_evenly_and_so_are_all_together(tables: list[int], num_owners: int) -> None:
    owners = range(3, 3 + num_owners)
    dealt = dealt_out_by_table(tables, owners)
    assert len(dealt) == sum(tables)
    start = 0
    for count in tables:
        part = dealt[start : start + count]
        start += count
        assert list(part) == sorted(part), "runs of neighbours"
        counts = [part.count(owner) for owner in owners]
        assert max(counts) - min(counts) <= 1
    totals = [dealt.count(owner) for owner in owners]
    assert max(totals) - min(totals) <= 1

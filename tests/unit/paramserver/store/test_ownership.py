"""Ownership of blocks: even at first, and right whatever order news comes in."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.errors import HpcbalError
from hpcbal.paramserver.store.ownership import Ownership, deal_blocks


@given(
    st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 20)), min_size=1, max_size=6),
    st.integers(1, 7),
)
def test_shares_are_even_in_all_and_of_each_table(tables: list[tuple[int, int]], num_ranks: int) -> None:
    sizes = [[num_bytes] * count for num_bytes, count in tables]
    ranks = [3 + rank for rank in range(num_ranks)]
    owners = deal_blocks(sizes, ranks)
    flat = [num_bytes for table in sizes for num_bytes in table]
    shares = [sum(b for b, o in zip(flat, owners, strict=True) if o == rank) for rank in ranks]
    assert max(shares) - min(shares) <= max(flat)
    start = 0
    for table in sizes:
        own = owners[start : start + len(table)]
        start += len(table)
        assert own == sorted(own)
        counts = [own.count(rank) for rank in ranks]
        assert max(counts) - min(counts) <= 1


def test_one_block_of_each_of_many_tables_is_spread() -> None:
    assert sorted(deal_blocks([[8]] * 6, [1, 2, 3])) == [1, 1, 2, 2, 3, 3]


def test_blocks_need_an_owner() -> None:
    with pytest.raises(HpcbalError, match="at least one rank"):
        deal_blocks([[1]], [])


def test_parts_are_the_blocks_of_each_owner_in_order() -> None:
    ownership = Ownership([2, 1, 2, 1])
    parts = [(owner, blocks.tolist()) for owner, blocks in ownership.parts(np.array([3, 2, 0]))]
    assert parts == [(1, [3]), (2, [2, 0])]
    assert ownership.blocks_of(2).tolist() == [0, 2]
    assert list(ownership.parts(np.array([], np.int64))) == []


def test_news_in_order_needs_no_version() -> None:
    ownership = Ownership([1, 1, 1])
    assert ownership.change([0, 2], 2).tolist() == [0, 2]
    assert ownership.owners.tolist() == [2, 1, 2]
    assert ownership.versions.tolist() == [1, 0, 1]


@given(st.permutations([(1, 5), (2, 6), (3, 7), (4, 5)]), st.integers(0, 3))
def test_news_in_any_order_and_twice_ends_with_the_last_owner(
    news: list[tuple[int, int]], again: int
) -> None:
    ownership = Ownership([4])
    for version, owner in [*news, news[again]]:
        ownership.change([0], owner, version)
    assert ownership.owners.tolist() == [5]
    assert ownership.versions.tolist() == [4]

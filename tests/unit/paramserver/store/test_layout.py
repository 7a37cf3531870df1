"""Every row of every table has one place in one block, and rows that are used often are spread."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.errors import HpcbalError
from hpcbal.paramserver.api.update import Table
from hpcbal.paramserver.store.layout import MAX_ROWS, Layout


@given(st.data(), st.integers(1, 200), st.integers(1, 200))
def test_rows_of_blocks_and_blocks_of_rows_agree(data: st.DataObject, dense: int, sparse: int) -> None:
    tables = Table("d", dense, 2), Table("s", sparse, 3, access="sparse")
    counts = [data.draw(st.integers(1, table.num_rows)) for table in tables]
    layout = Layout(tables, counts)
    assert layout.num_blocks == sum(counts)
    for table, count in zip(tables, counts, strict=True):
        blocks, places = layout.locate(table.name, np.arange(table.num_rows))
        sizes = []
        seen = []
        for block in layout.blocks_of(table.name):
            rows = layout.rows_of(block)
            assert (blocks[rows] == block).all()
            np.testing.assert_array_equal(places[rows], np.arange(len(rows)))
            assert layout.shape_of(block) == (table, len(rows))
            assert layout.table_of(block) == table
            start, stop = layout.rows_span(block)
            assert stop - start == len(rows)
            seen += rows.tolist()
            sizes.append(len(rows))
        assert len(sizes) == count
        assert max(sizes) - min(sizes) <= 1
        assert sorted(seen) == list(range(table.num_rows))


def test_a_block_of_a_dense_table_is_a_run_of_rows() -> None:
    layout = Layout([Table("d", 10, 1)], [3])
    assert [layout.rows_of(block).tolist() for block in range(3)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]


def test_rows_that_are_used_most_meet_in_no_block() -> None:
    # Words by frequency, as in a dictionary: use falls like 1 / rank.
    layout = Layout([Table("words", 50_000, 1, access="sparse")], [16])
    blocks, _ = layout.locate("words", np.arange(50_000))
    assert len(set(blocks[:16].tolist())) >= 12
    use = np.bincount(blocks[16:], 1 / np.arange(17, 50_001))
    assert use.max() < 1.25 * use.mean()


def test_the_largest_table_has_places_for_all_rows() -> None:
    layout = Layout([Table("huge", MAX_ROWS, 1, access="sparse")], [64])
    ids = np.array([0, 1, MAX_ROWS // 2, MAX_ROWS - 1])
    blocks, places = layout.locate("huge", ids)
    for block, place in zip(blocks.tolist(), places.tolist(), strict=True):
        assert 0 <= place < layout.shape_of(block)[1]


@pytest.mark.parametrize(("rows", "blocks"), [(3, 0), (3, 4), (MAX_ROWS + 1, 1)])
def test_a_table_is_cut_into_as_many_blocks_as_it_has_rows_at_most(rows: int, blocks: int) -> None:
    with pytest.raises(HpcbalError, match=f"'t': {rows} rows in {blocks} blocks"):
        Layout([Table("t", rows, 1)], [blocks])

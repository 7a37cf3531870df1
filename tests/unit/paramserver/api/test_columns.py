"""Samples are gathered from blocks and scattered back, ragged ones too."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.paramserver.api.columns import (
    Ragged,
    gather,
    num_bytes_of,
    num_samples_of,
    scatter,
    share_offsets,
)


def ragged_of(lists: list[list[int]]) -> Ragged:
    return Ragged.of([np.array(each, np.int64) for each in lists], "int64")


lists_of_ints = st.lists(st.lists(st.integers(0, 99), max_size=4), min_size=1, max_size=6)


@given(st.lists(lists_of_ints, min_size=1, max_size=4), st.data())
def test_gather_joins_what_indexing_by_sample_gives(
    blocks: list[list[list[int]]], data: st.DataObject
) -> None:
    numbers = [
        data.draw(st.lists(st.integers(0, len(lists) - 1), unique=True, min_size=1)) for lists in blocks
    ]
    parts = [
        ({"words": ragged_of(lists), "x": np.array([len(each) for each in lists])}, np.array(ids))
        for lists, ids in zip(blocks, numbers, strict=True)
    ]
    joined = gather(parts)
    expected = [lists[i] for lists, ids in zip(blocks, numbers, strict=True) for i in ids]
    words = joined["words"]
    assert isinstance(words, Ragged)
    assert [words[i].tolist() for i in range(len(words))] == expected
    assert np.asarray(joined["x"]).tolist() == [len(each) for each in expected]
    assert words.lengths.tolist() == [len(each) for each in expected]


def test_scatter_writes_back_what_changed_and_nothing_else() -> None:
    blocks = [
        {"topics": ragged_of([[1, 2], [], [3]]), "x": np.arange(6.0).reshape(3, 2)},
        {"topics": ragged_of([[4], [5, 6]]), "x": np.zeros((2, 2))},
    ]
    parts = [(blocks[0], np.array([2, 0])), (blocks[1], np.array([1]))]
    joined = gather(parts)
    joined["topics"].values[:] += 10
    joined["x"][:] -= 1.0
    assert blocks[0]["topics"].values.tolist() == [1, 2, 3]  # gathered arrays are copies
    scatter(joined, parts)
    assert blocks[0]["topics"].values.tolist() == [11, 12, 13]
    assert blocks[1]["topics"].values.tolist() == [4, 15, 16]
    assert blocks[0]["x"].tolist() == [[-1.0, 0.0], [2.0, 3.0], [3.0, 4.0]]
    assert blocks[1]["x"].tolist() == [[0.0, 0.0], [-1.0, -1.0]]


def test_columns_know_their_samples_and_bytes() -> None:
    assert num_samples_of({}) is None
    assert num_samples_of({"a": np.zeros(3), "b": ragged_of([[1], [], [2]])}) == 3
    assert num_bytes_of({"a": np.zeros(3), "b": ragged_of([[1], [], [2]])}) == 24 + 16 + 32
    with pytest.raises(ValueError, match="'a': 3, 'b': 1"):
        num_samples_of({"a": np.zeros(3), "b": ragged_of([[1]])})


def test_columns_with_equal_offsets_share_them_before_and_after_gathering() -> None:
    lists = {"ids": [[1, 2], [3]], "values": [[5, 6], [7]], "others": [[1], [2, 3]]}
    columns = share_offsets({name: ragged_of(each) for name, each in lists.items()} | {"x": np.zeros(2)})
    joined = gather([(columns, np.array([1])), (columns, np.array([0]))])
    for each in (columns, joined):
        assert each["ids"].offsets is each["values"].offsets
        assert each["ids"].offsets is not each["others"].offsets
    assert [part.tolist() for part in joined["values"]] == [[7], [5, 6]]
    assert [part.tolist() for part in joined["others"]] == [[2, 3], [1]]

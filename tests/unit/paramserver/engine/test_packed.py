"""Facts and columns survive as a stream, in whatever pieces it is read."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.paramserver.api.columns import Column, Ragged
from hpcbal.paramserver.engine.data_carrier import Packed, unpack

OFFSETS = np.array([0, 2, 2, 3])
COLUMNS: dict[str, Column] = {
    "pixels": np.arange(3 * 5, dtype=np.uint8).reshape(3, 5),
    "transposed": np.arange(6.0).reshape(2, 3).T,
    "words": Ragged(np.array([4, 5, 6], np.int16), OFFSETS),
    "counts": Ragged(np.array([[1.5], [2.5], [3.5]]), OFFSETS),
    "none": np.empty((3, 0), np.float32),
}


@given(cuts=st.lists(st.integers(0, 2000)))
def test_a_stream_that_is_read_in_pieces_has_all_facts_and_columns(cuts: list[int]) -> None:
    packed = Packed(({"at": 7}, {"columns": COLUMNS, "state": {}}))
    stops = [*sorted(min(cut, packed.num_bytes) for cut in cuts), packed.num_bytes]
    stream = np.empty(packed.num_bytes, np.uint8)
    for start, stop in zip([0, *stops], stops, strict=False):
        stream[start:stop] = packed.read(start, stop)
    np.testing.assert_array_equal(stream, np.concatenate(packed.parts))
    facts, groups = unpack(stream)
    assert facts == {"at": 7}
    assert groups["state"] == {}
    for name, column in COLUMNS.items():
        found = groups["columns"][name]
        if isinstance(column, Ragged):
            assert isinstance(found, Ragged)
            np.testing.assert_array_equal(found.values, column.values)
            np.testing.assert_array_equal(found.offsets, column.offsets)
            assert found.values.dtype == column.values.dtype
        else:
            np.testing.assert_array_equal(found, column)
            assert found.dtype == column.dtype  # type: ignore[union-attr]


def test_arrays_are_parts_of_the_stream_and_shared_offsets_one_array() -> None:
    packed = Packed({"columns": COLUMNS})
    stream = packed.read(0, packed.num_bytes)
    columns = unpack(stream)["columns"]
    words, counts, pixels = columns["words"], columns["counts"], columns["pixels"]
    assert isinstance(words, Ragged)
    assert isinstance(counts, Ragged)
    assert isinstance(pixels, np.ndarray)
    assert words.offsets is counts.offsets
    assert np.shares_memory(pixels, stream)
    pixels[:] = 0
    assert words.values.tolist() == [4, 5, 6]

"""Any arrays and any progress are read from a checkpoint exactly as they were written."""

import tempfile

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from hpcbal.checkpoint.reader import read_checkpoint
from hpcbal.checkpoint.state import TrainingState
from hpcbal.checkpoint.writer import write_checkpoint
from hpcbal.events.history import EpochRecord, Position

PARTS = st.text("abcdefghijklmnop_0123456789:-é ", min_size=1, max_size=8)
NAMES = st.lists(PARTS, min_size=1, max_size=3).map("/".join)
TYPES = st.one_of(
    arrays_of.boolean_dtypes(),
    arrays_of.integer_dtypes(),
    arrays_of.unsigned_integer_dtypes(),
    arrays_of.floating_dtypes(sizes=(16, 32, 64)),
    arrays_of.complex_number_dtypes(sizes=(64, 128)),
)
ARRAYS = TYPES.flatmap(
    lambda type_: arrays_of.arrays(type_, arrays_of.array_shapes(min_dims=0, min_side=0, max_side=6))
)
RECORDS = st.builds(
    EpochRecord,
    epoch=st.integers(1, 10**6),
    pass_index=st.integers(0, 10**6),
    metrics=st.dictionaries(st.text(max_size=8), st.floats(allow_nan=False), max_size=3),
    seconds=st.floats(0, 1e9),
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def without_names_below_others(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        name: array
        for name, array in arrays.items()
        if not any(name.startswith(f"{other}/") for other in arrays)
    }


@settings(max_examples=30, deadline=None)
@given(
    arrays=st.dictionaries(NAMES, ARRAYS, max_size=5).map(without_names_below_others),
    history=st.lists(RECORDS, max_size=4).map(tuple),
    position=st.builds(Position, st.integers(0, 2**40), st.integers(0, 2**40)),
    texts=st.tuples(st.text(max_size=10), st.text(max_size=10)),
    meta=st.dictionaries(st.text(max_size=5), JSON, max_size=3),
)
def test_every_state_is_read_back_unchanged(arrays, history, position, texts, meta):
    state = TrainingState(texts[0], len(history), position, history, arrays, texts[1], meta)
    with tempfile.TemporaryDirectory() as directory:
        write_checkpoint(directory, state)
        read, warnings = read_checkpoint(directory)
    assert warnings == []
    assert (read.name, read.epoch, read.position, read.history, read.fingerprint) == (
        texts[0],
        len(history),
        position,
        history,
        texts[1],
    )
    assert read.meta == meta
    assert read.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        assert read.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(read.arrays[name], array, strict=True)

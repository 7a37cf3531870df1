"""Whatever happens to the bytes of a checkpoint, a whole one is read or none, never a wrong one."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbal.checkpoint.reader import read_checkpoint, read_progress
from hpcbal.checkpoint.state import TrainingState
from hpcbal.checkpoint.writer import write_checkpoint
from hpcbal.events.history import Position


def files_of_two_epochs() -> tuple[bytes, bytes]:
    """(current, previous): epochs 2 and 1."""
    with tempfile.TemporaryDirectory() as directory:
        for epoch in (1, 2):
            arrays = {f"w/{i}": np.full((3, i), float(epoch)) for i in range(9)}
            write_checkpoint(directory, TrainingState("dnn", epoch, Position(epoch), (), arrays, "data"))
        return tuple(
            (Path(directory) / name).read_bytes() for name in ("checkpoint.h5", "checkpoint.previous.h5")
        )


CURRENT, PREVIOUS = files_of_two_epochs()
OFFSETS = st.one_of(st.integers(0, 700), st.integers(0, min(len(CURRENT), len(PREVIOUS)) - 1))
DAMAGES = st.one_of(
    OFFSETS.map(lambda at: lambda data: data[:at]),
    st.tuples(OFFSETS, st.integers(1, 255)).map(
        lambda flip: lambda data: data[: flip[0]] + bytes([data[flip[0]] ^ flip[1]]) + data[flip[0] + 1 :]
    ),
    st.tuples(OFFSETS, st.integers(1, 600)).map(
        lambda hole: lambda data: (data[: hole[0]] + bytes(hole[1]) + data[hole[0] + hole[1] :])[: len(data)]
    ),
    st.binary(min_size=1, max_size=9).map(lambda tail: lambda data: data + tail),
    st.binary(max_size=700).map(lambda junk: lambda data: junk),
)


@settings(max_examples=150, deadline=None)
@given(damage_current=DAMAGES, damage_previous=st.none() | DAMAGES)
def test_a_damaged_file_is_never_read_as_if_it_were_whole(damage_current, damage_previous):
    current = damage_current(CURRENT)
    previous = PREVIOUS if damage_previous is None else damage_previous(PREVIOUS)
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "checkpoint.h5").write_bytes(current)
        (Path(directory) / "checkpoint.previous.h5").write_bytes(previous)
        state, warnings = read_checkpoint(directory)
        progress, same_warnings = read_progress(directory)
    if current == CURRENT:  # zeros were written over zeros
        expected = 2
    elif previous == PREVIOUS:
        expected = 1
    else:
        expected = 0
    assert (state.epoch if state else 0) == (progress.epoch if progress else 0) == expected
    assert warnings == same_warnings
    assert len(warnings) == {2: 0, 1: 1, 0: 2}[expected]
    if state is not None:
        assert all((array == expected).all() for array in state.arrays.values())

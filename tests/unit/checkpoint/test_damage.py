"""Damaged, missing and left-over files are reported, and the newest whole one is used."""

import os

import numpy as np
import pytest

from hpcbal.checkpoint import state
from hpcbal.checkpoint.reader import read_checkpoint, read_progress, recover_progress
from hpcbal.checkpoint.state import TrainingState
from hpcbal.checkpoint.writer import write_checkpoint
from hpcbal.errors import CheckpointError
from hpcbal.events.history import Position


def state_of(epoch: int) -> TrainingState:
    return TrainingState("dnn", epoch, Position(epoch), (), {"weights/w": np.full(500, float(epoch))}, "data")


@pytest.fixture
def two(tmp_path):
    """Checkpoints of epoch 2 (current) and epoch 1 (previous)."""
    write_checkpoint(tmp_path, state_of(1))
    write_checkpoint(tmp_path, state_of(2))
    return tmp_path


def read_both(directory):
    """Call `read_checkpoint` and check that `read_progress` agrees."""
    state, warnings = read_checkpoint(directory)
    progress, same_warnings = read_progress(directory)
    assert warnings == same_warnings
    assert (state is None) == (progress is None)
    if state is not None:
        assert (state.epoch, state.position) == (progress.epoch, progress.position)
    return state, warnings


@pytest.mark.parametrize("keep", [0, 100, 512, 1000, -1])
def test_the_previous_file_replaces_a_truncated_one(two, keep):
    current = two / "checkpoint.h5"
    os.truncate(current, keep if keep >= 0 else current.stat().st_size + keep)
    state, warnings = read_both(two)
    assert state.epoch == 1
    assert (state.arrays["weights/w"] == 1).all()
    assert len(warnings) == 1
    assert warnings[0].startswith(f"{current}: it ")
    assert warnings[0].endswith(f"; using {two / 'checkpoint.previous.h5'} (epoch 1)")


def test_a_flipped_byte_in_an_array_is_noticed(two):
    current = two / "checkpoint.h5"
    data = bytearray(current.read_bytes())
    data[data.index(np.full(500, 2.0).tobytes()) + 77] ^= 1
    current.write_bytes(data)
    state, warnings = read_both(two)
    assert state.epoch == 1
    assert "its content is damaged: checksum" in warnings[0]


def test_bytes_added_at_the_end_are_noticed(two):
    with open(two / "checkpoint.h5", "ab") as file:
        file.write(b"x")
    state, warnings = read_both(two)
    assert state.epoch == 1
    assert "extended" in warnings[0]


def test_with_both_damaged_the_dnn_starts_from_the_beginning_and_both_are_named(two):
    for name in ("checkpoint.h5", "checkpoint.previous.h5"):
        (two / name).write_bytes(b"not a checkpoint")
    state, warnings = read_both(two)
    assert state is None
    assert [os.path.basename(text.split(":")[0]) for text in warnings] == [
        "checkpoint.h5",
        "checkpoint.previous.h5",
    ]
    assert all("starts from the beginning" in text for text in warnings)


def test_a_damaged_file_is_kept_when_a_run_resumes_and_reported_once(two):
    os.truncate(two / "checkpoint.h5", 1000)
    state, (warning,) = recover_progress(two)
    assert state.epoch == 1
    assert "; kept as checkpoint.damaged.h5; using " in warning
    assert read_both(two)[1] == []
    write_checkpoint(two, state_of(3))
    assert (two / "checkpoint.damaged.h5").stat().st_size == 1000
    assert read_both(two)[0].epoch == 3


def test_each_damaged_file_is_kept(two):
    for name in ("checkpoint.h5", "checkpoint.previous.h5"):
        (two / name).write_text(name)
    state, warnings = recover_progress(two)
    assert state is None
    assert ["; kept as checkpoint.damaged" in text for text in warnings] == [True, True]
    assert (two / "checkpoint.damaged.h5").read_text() == "checkpoint.h5"
    assert (two / "checkpoint.damaged-2.h5").read_text() == "checkpoint.previous.h5"


def test_a_missing_current_file_is_reported(two):
    (two / "checkpoint.h5").unlink()
    state, warnings = read_both(two)
    assert state.epoch == 1
    assert "is missing" in warnings[0]


def test_a_left_over_file_is_reported_and_ignored(two):
    (two / "checkpoint.h5.tmp").write_bytes(b"half")
    state, warnings = read_both(two)
    assert state.epoch == 2
    assert warnings == [
        f"{two / 'checkpoint.h5.tmp'}: left behind by an interrupted save, ignored; "
        f"using {two / 'checkpoint.h5'} (epoch 2)"
    ]


def test_a_damaged_file_never_replaces_the_whole_previous_one(two):
    os.truncate(two / "checkpoint.h5", 1000)
    write_checkpoint(two, state_of(3))
    (two / "checkpoint.h5").unlink()
    assert read_both(two)[0].epoch == 1


def test_a_file_changed_since_it_was_written_is_not_trusted(two):
    identity = write_checkpoint(two, state_of(3))
    os.truncate(two / "checkpoint.h5", 1000)
    write_checkpoint(two, state_of(4), known_whole=identity)
    assert (two / "checkpoint.damaged.h5").stat().st_size == 1000
    (two / "checkpoint.h5").unlink()
    assert read_both(two)[0].epoch == 2


def test_another_format_version_stops_rather_than_training_again(two, monkeypatch):
    monkeypatch.setattr(state, "FORMAT_VERSION", 7)
    with pytest.raises(CheckpointError, match=r"checkpoint\.h5: its format is version 1; .* reads 7"):
        read_progress(two)


def test_a_changed_seal_is_noticed_even_where_it_is_blank(two):
    data = bytearray((two / "checkpoint.h5").read_bytes())
    data[400] = ord("x")
    (two / "checkpoint.h5").write_bytes(data)
    state, warnings = read_both(two)
    assert state.epoch == 1
    assert "first 512 bytes are damaged" in warnings[0]


def test_a_file_that_cannot_be_opened_stops_rather_than_training_again(two, monkeypatch):
    def refuse(path, *args, **kwargs):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(state, "open", refuse, raising=False)
    with pytest.raises(CheckpointError, match=r"checkpoint\.h5: cannot read .*Permission denied"):
        read_checkpoint(two)

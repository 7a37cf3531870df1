"""Checkpoints are read back unchanged."""

import math

import h5py
import numpy as np
import pytest

from hpcbal.checkpoint.best import EPOCH_FACTS
from hpcbal.checkpoint.reader import read_checkpoint, read_progress
from hpcbal.checkpoint.state import TrainingState, progress_from_json, progress_to_json
from hpcbal.checkpoint.writer import write_checkpoint
from hpcbal.errors import CheckpointError
from hpcbal.events.history import EpochRecord, Position

HISTORY = (
    EpochRecord(1, 0, {"loss": 0.1 + 0.2, "val_accuracy": 1 / 3}, 1.25),
    EpochRecord(2, 1, {"loss": math.inf, "val_accuracy": 0.5}, 2.5),
)


def state_with(**arrays: np.ndarray) -> TrainingState:
    return TrainingState("dnn", 2, Position(2, 640), HISTORY, arrays, "fingerprint")


def test_progress_is_read_back_exactly(tmp_path):
    state = state_with()
    write_checkpoint(tmp_path, state)
    read, warnings = read_checkpoint(tmp_path)
    assert warnings == []
    assert read == state


def test_nan_in_the_history_is_read_back(tmp_path):
    history = (EpochRecord(1, 0, {"loss": np.float32("nan")}, 1.0),)
    write_checkpoint(tmp_path, TrainingState("dnn", 1, Position(1), history))
    read, _ = read_progress(tmp_path)
    assert math.isnan(read.history[0].metrics["loss"])


@pytest.mark.parametrize(
    "array",
    [
        np.array(3.5),
        np.array(True),
        np.zeros((0, 3), np.float32),
        np.arange(24.0).reshape(2, 3, 4).transpose(2, 0, 1),
        np.arange(10)[::-2],
        np.array([1, 2, 3], ">i4"),
        np.array([True, False]),
        np.ones((2, 2), np.float16),
        np.array([1 + 2j, np.nan], np.complex64),
        np.array([2**63], np.uint64),
    ],
    ids=lambda array: f"{array.dtype.str}{array.shape}",
)
def test_an_array_keeps_shape_type_and_values(tmp_path, array):
    write_checkpoint(tmp_path, state_with(before=np.ones(3), a=array, z=np.ones(3)))
    read, _ = read_checkpoint(tmp_path)
    assert read.arrays["a"].shape == array.shape
    assert read.arrays["a"].dtype == array.dtype
    np.testing.assert_array_equal(read.arrays["a"], array)
    assert read.arrays["a"].flags.owndata or read.arrays["a"].flags.writeable


def test_names_are_paths_that_any_hdf5_tool_shows(tmp_path):
    arrays = {"weights/conv_1/kernel": np.ones((3, 2)), "optimizer/Größe": np.ones(1)}
    write_checkpoint(tmp_path, TrainingState("dnn", 1, Position(1), (), arrays))
    with h5py.File(tmp_path / "checkpoint.h5") as file:
        assert file["arrays/weights/conv_1/kernel"].shape == (3, 2)
    read, _ = read_checkpoint(tmp_path)
    assert read.arrays.keys() == arrays.keys()


def test_progress_is_read_without_arrays(tmp_path):
    state = state_with(w=np.ones(1000))
    write_checkpoint(tmp_path, state)
    read, warnings = read_progress(tmp_path)
    assert (read.history, read.position, warnings) == (state.history, state.position, [])
    assert read.arrays == {}


def test_equal_states_make_equal_files(tmp_path):
    for name in ("one", "two"):
        write_checkpoint(tmp_path / name, state_with(w=np.arange(10.0)))
    files = [(tmp_path / name / "checkpoint.h5").read_bytes() for name in ("one", "two")]
    assert files[0] == files[1]


def test_a_long_history_fits(tmp_path):
    history = tuple(EpochRecord(e, e - 1, {"loss": 1 / e, "val_accuracy": 0.5}, 1.0) for e in range(1, 5001))
    write_checkpoint(tmp_path, TrainingState("dnn", 5000, Position(5000), history))
    read, _ = read_progress(tmp_path)
    assert read.history == history


def test_the_previous_checkpoint_is_kept(tmp_path):
    for epoch in (1, 2, 3):
        write_checkpoint(tmp_path, TrainingState("dnn", epoch, Position(epoch)))
    assert read_progress(tmp_path)[0].epoch == 3
    (tmp_path / "checkpoint.h5").unlink()
    assert read_progress(tmp_path)[0].epoch == 2
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint.previous.h5"}


def test_no_checkpoint_is_no_state_and_no_warning(tmp_path):
    assert read_checkpoint(tmp_path) == (None, [])
    assert read_progress(tmp_path / "missing") == (None, [])


@pytest.mark.parametrize("name", ["", "/w", "w/", "a//b", "a/./b", "a\0b"])
def test_a_name_that_cannot_be_restored_is_refused(tmp_path, name):
    with pytest.raises(CheckpointError, match="is not allowed in a checkpoint"):
        write_checkpoint(tmp_path, TrainingState("dnn", 1, Position(1), (), {name: np.ones(1)}))
    assert list(tmp_path.iterdir()) == []


def test_a_name_below_another_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="'w/kernel' is below"):
        write_checkpoint(tmp_path, state_with(**{"w": np.ones(1), "w/kernel": np.ones(1)}))


@pytest.mark.parametrize(
    "array", [np.array(["text"]), np.array([None]), np.zeros(2, "i4,f4"), np.zeros(2, "M8[s]")]
)
def test_a_type_that_needs_pickle_is_refused(tmp_path, array):
    with pytest.raises(CheckpointError, match="array 'w' has type"):
        write_checkpoint(tmp_path, state_with(w=array))


def test_a_checkpoint_without_meta_has_the_old_format():
    """An older hpcbal reads these keys and no others; its files hold the same text."""
    state = TrainingState("a", 1, Position(3, 7), (EpochRecord(1, 2, {"loss": 0.5}, 1.5),), {}, "data")
    text = (
        '{"dnn_id": "a", "epoch": 1, "pass_index": 3, "offset": 7, "fingerprint": "data", '
        '"history": [{"epoch": 1, "pass_index": 2, "metrics": {"loss": 0.5}, "seconds": 1.5}]}'
    )
    assert progress_to_json(state) == text
    assert progress_from_json(text, {}) == state


def test_another_kind_of_job_keeps_its_own_state_beside_its_arrays(tmp_path):
    meta = {
        "kind": "parameter-server",
        "clock": {"w0": 12, "w1": 11},
        "owners": [0, 1, 1],
        "lr": 0.1,
        "x": None,
    }
    blocks = {"blocks/0": np.arange(6.0).reshape(2, 3), "blocks/1": np.zeros((0, 3), np.float32)}
    write_checkpoint(tmp_path, TrainingState("nmf", 4, Position(4), arrays=blocks, meta=meta))
    read, warnings = read_checkpoint(tmp_path)
    assert warnings == []
    assert read.meta == meta
    assert set(read.arrays) == set(blocks)
    progress, _ = read_progress(tmp_path)
    assert progress.meta == meta


def test_measurements_of_many_ranks_fit(tmp_path):
    """More than the 64 KiB that an attribute of HDF5 can hold."""
    meta = {EPOCH_FACTS: {"ranks": {"compute_s": [1 / number for number in range(1, 10_001)]}}}
    write_checkpoint(tmp_path, TrainingState("dnn", 1, Position(1), meta=meta))
    assert read_progress(tmp_path)[0].meta == meta


@pytest.mark.parametrize(
    ("meta", "named"),
    [
        ({"a": (1, 2)}, "meta.a is (1, 2)"),
        ({"a": {"b": [1, np.int64(2)]}}, "meta.a.b.1 is "),
        ({"a": {1: "x"}}, "meta.a is {1: 'x'}"),
        ({"a": np.ones(1)}, "meta.a is array"),
    ],
)
def test_meta_that_cannot_be_restored_exactly_is_refused(tmp_path, meta, named):
    with pytest.raises(CheckpointError) as caught:
        write_checkpoint(tmp_path, TrainingState("a", 1, Position(1), meta=meta))
    assert named in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("meta", ["3", '"x"', "[[1]]", "null"])
def test_a_damaged_meta_is_an_error(meta):
    text = progress_to_json(TrainingState("a", 1, Position(0), meta={"a": 1}))
    assert text.endswith(', "meta": {"a": 1}}')
    with pytest.raises(CheckpointError, match="cannot be understood"):
        progress_from_json(text.replace('{"a": 1}', meta), {})

"""Checkpoints of a parameter-server job: files of executors, and the manifest that makes them one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hpcbal.errors import CheckpointError
from hpcbal.events.history import EpochRecord
from hpcbal.runtime.jobs.checkpoint import (
    DATA,
    MANIFEST,
    PARAMETERS,
    SavedJob,
    folder_of,
    read_blocks,
    read_saved,
    write_blocks,
    write_manifest,
)


def saved(number: int) -> SavedJob:
    history = (EpochRecord(1, 0, {"loss": 0.1, "rmse": float("nan")}, 2.5),)
    return SavedJob(
        number, "f", {DATA: (2,), PARAMETERS: (3,)}, history, {PARAMETERS: (2, 1, 2), DATA: (1, 1)}
    )


def write(job: Path, number: int, offset: float = 0.0) -> None:
    """Executor 1 has parameter block 1 and all data; executor 2 has the other parameter blocks."""
    block = {b: {"w": np.arange(4.0).reshape(2, 2) + 10 * b + offset} for b in range(3)}
    data = {b: {"state/z": np.full(b, b, dtype=np.int32)} for b in range(2)}
    write_blocks(job, number, 1, {PARAMETERS: {1: block[1]}, DATA: data})
    write_blocks(job, number, 2, {PARAMETERS: {b: block[b] for b in (0, 2)}, DATA: {}})


def test_other_executors_read_what_they_own_now(tmp_path: Path) -> None:
    write(tmp_path, 1)
    write_manifest(tmp_path, saved(1))
    found = read_saved(tmp_path)
    assert found is not None
    assert (found.number, found.cut, found.holder) == (1, saved(1).cut, saved(1).holder)
    assert found.history[0].metrics["loss"] == 0.1
    assert np.isnan(found.history[0].metrics["rmse"])
    blocks = read_blocks(tmp_path, found, PARAMETERS, [2, 1])
    assert sorted(blocks) == [1, 2]
    np.testing.assert_array_equal(blocks[2]["w"], np.arange(4.0).reshape(2, 2) + 20)
    np.testing.assert_array_equal(blocks[1]["w"], np.arange(4.0).reshape(2, 2) + 10)
    data = read_blocks(tmp_path, found, DATA, [0, 1])
    assert [data[b]["state/z"].tolist() for b in (0, 1)] == [[], [1]]


def test_a_kill_before_the_manifest_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    write(tmp_path, 1)
    write_manifest(tmp_path, saved(1))
    write(tmp_path, 2, offset=0.5)
    found = read_saved(tmp_path)
    assert found is not None
    assert read_blocks(tmp_path, found, PARAMETERS, [0])[0]["w"][0, 0] == 0.0
    write_manifest(tmp_path, saved(2))
    found = read_saved(tmp_path)
    assert found is not None
    assert read_blocks(tmp_path, found, PARAMETERS, [0])[0]["w"][0, 0] == 0.5
    assert not folder_of(tmp_path, 1).exists()


def test_no_manifest_is_no_checkpoint(tmp_path: Path) -> None:
    write(tmp_path, 1)
    assert read_saved(tmp_path) is None


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"schema": 99}', '{"schema": 1, "number": "x"}'])
def test_a_manifest_that_cannot_be_used_is_one_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / MANIFEST).write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=MANIFEST) as caught:
        read_saved(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("what", ["holder", "cut"])
def test_a_manifest_that_leaves_blocks_out_is_refused(tmp_path: Path, what: str) -> None:
    write(tmp_path, 1)
    write_manifest(tmp_path, saved(1))
    content = json.loads((tmp_path / MANIFEST).read_text(encoding="utf-8"))
    content[what][DATA] = []
    (tmp_path / MANIFEST).write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"cannot be used .*data: cut into"):
        read_saved(tmp_path)


def test_a_manifest_of_random_bytes_is_not_repeated_to_the_user(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_bytes(b"\xff" * 10_000)
    with pytest.raises(CheckpointError) as caught:
        read_saved(tmp_path)
    assert len(str(caught.value)) < 500


def test_a_damaged_or_missing_file_is_named_with_the_way_out(tmp_path: Path) -> None:
    write(tmp_path, 1)
    write_manifest(tmp_path, saved(1))
    found = read_saved(tmp_path)
    assert found is not None
    path = folder_of(tmp_path, 1) / "executor-001" / "checkpoint.h5"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"executor-001.*restore it, or remove"):
        read_blocks(tmp_path, found, DATA, [0])
    path.unlink()
    with pytest.raises(CheckpointError, match=r"No such file.*restore it, or remove"):
        read_blocks(tmp_path, found, DATA, [0])
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    assert manifest["holder"][DATA] == [1, 1]

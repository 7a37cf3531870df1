"""A write that is killed or fails at any point leaves a whole checkpoint."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hpcbal.checkpoint import writer
from hpcbal.checkpoint.reader import read_checkpoint
from hpcbal.checkpoint.state import TrainingState
from hpcbal.checkpoint.writer import write_checkpoint
from hpcbal.errors import ExitCode, OutputError
from hpcbal.events.history import Position

PROGRAMS = Path(__file__).parent / "programs"


def state_of(epoch: int) -> TrainingState:
    arrays = {"a": np.full(300, float(epoch)), "b/c": np.full((5, 7), epoch)}
    return TrainingState("dnn", epoch, Position(epoch), (), arrays, "data")


def run(program: str, *args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAMS / program), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


class Killed(BaseException):
    """Stands in for the end of the process."""


class Killer:
    """Allows `num_calls` calls and kills at the next one; calls after the kill do nothing."""

    def __init__(self, num_calls: int) -> None:
        self.left = num_calls

    def before(self, function):
        def call(*args, **kwargs):
            if self.left == 0:
                raise Killed
            self.left -= 1
            return function(*args, **kwargs)

        return call


class KilledWrites:
    """A file in which any write may be the last."""

    def __init__(self, file, killer):
        self._file = file
        self.write = killer.before(file.write)

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._file.close()


@pytest.mark.parametrize("num_before", [0, 1, 2])
def test_a_kill_at_any_call_leaves_the_old_or_the_new(tmp_path, num_before):
    for num_calls in range(1000):
        directory = tmp_path / f"{num_before}-{num_calls}"
        for epoch in range(1, num_before + 1):
            write_checkpoint(directory, state_of(epoch))
        killer = Killer(num_calls)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(writer, "remove_quietly", lambda path: None)
            patch.setattr(writer, "sync_directory", killer.before(writer.sync_directory))
            patch.setattr(os, "replace", killer.before(os.replace))
            patch.setattr(os, "fsync", killer.before(os.fsync))
            patch.setattr(
                writer,
                "create_new",
                lambda path, killer=killer, create=writer.create_new: KilledWrites(create(path), killer),
            )
            try:
                write_checkpoint(directory, state_of(num_before + 1))
                finished = True
            except Killed:
                finished = False
        state, _ = read_checkpoint(directory)
        found = 0 if state is None else state.epoch
        assert found in (num_before, num_before + 1)
        if state is not None:
            assert (state.arrays["a"] == found).all()
        if finished:
            assert found == num_before + 1
            break
    assert finished
    assert num_calls > 8


def test_kills_at_random_moments_lose_nothing_that_was_acknowledged(tmp_path):
    done = run("write_until_killed.py", tmp_path, 100, 1)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["epochs"] > 0
    assert counts["aside"] > 0  # some kills did hit the middle of a write


def test_a_full_disk_is_reported_and_the_old_checkpoint_stays(tmp_path, monkeypatch):
    write_checkpoint(tmp_path, state_of(1))
    monkeypatch.setattr(writer, "create_new", lambda path: open("/dev/full", "wb"))  # noqa: SIM115
    with pytest.raises(OutputError) as caught:
        write_checkpoint(tmp_path, state_of(2))
    assert caught.value.exit_code == ExitCode.WRONG_INPUT
    assert str(tmp_path / "checkpoint.h5") in str(caught.value)
    assert "No space left on device" in str(caught.value)
    assert "'dnn'" in str(caught.value)
    assert read_checkpoint(tmp_path)[0].epoch == 1
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.h5"]


def test_a_write_that_stops_half_way_leaves_no_partial_file(tmp_path):
    write_checkpoint(tmp_path, state_of(1))
    done = run("write_with_size_limit.py", tmp_path, 1 << 20)
    assert done.stdout.startswith("OutputError"), done.stderr
    assert "File too large" in done.stdout
    state, warnings = read_checkpoint(tmp_path)
    assert (state.epoch, warnings) == (1, [])
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.h5"]


def test_a_directory_that_cannot_be_made_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="File exists"):
        write_checkpoint(tmp_path / "file" / "dnn", state_of(1))


def test_a_refused_rename_leaves_the_old_one_in_place(tmp_path, monkeypatch):
    write_checkpoint(tmp_path, state_of(1))

    def refuse(source, target):
        raise PermissionError(13, "Permission denied", str(target))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OutputError, match="Permission denied"):
        write_checkpoint(tmp_path, state_of(2))
    monkeypatch.undo()
    assert read_checkpoint(tmp_path)[0].epoch == 1

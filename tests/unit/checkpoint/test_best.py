"""Best weights: whole after a kill at any call, and of the best epoch that the checkpoint knows."""

import errno
import itertools
import os
from collections import deque
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hpcbal.checkpoint import best, writer
from hpcbal.checkpoint.background import BackgroundWriter, _still_needed, _Submission
from hpcbal.checkpoint.best import (
    BEST_BY,
    BEST_EPOCH,
    ONLY_BEST,
    forget_best,
    holds_best,
    read_best,
    recover_best,
)
from hpcbal.checkpoint.reader import read_checkpoint, read_file, recover_progress
from hpcbal.checkpoint.state import TrainingState
from hpcbal.checkpoint.weights import read_weights
from hpcbal.errors import CheckpointError, InputError, OutputError
from hpcbal.events.history import EpochRecord, Position

VALUES = (0.1, 0.5, 0.4, 0.6, float("nan"), 0.9, 0.2, 0.95)
"""The monitored metric after each epoch."""

STEPS = ((1, "both"), (2, "best"), (3, "last"), (4, "best"), (6, "best"), (7, "last"), (8, "both"))
"""The saves of a job: after which epoch, and as which weights."""


def best_epoch(num_epochs: int) -> int:
    known = [(value, -epoch) for epoch, value in enumerate(VALUES[:num_epochs], 1) if value == value]
    return -max(known)[1] if known else 0


def state_of(epoch: int, **meta: object) -> TrainingState:
    history = tuple(EpochRecord(e, e, {"val": VALUES[e - 1]}) for e in range(1, epoch + 1))
    arrays = {"weights/w": np.full(400, float(epoch)), "optimizer/m": np.full(800, float(epoch))}
    return TrainingState("dnn", epoch, Position(epoch), history, arrays, "data", meta)


def submission(directory: Path, epoch: int, kind: str, final: bool = False) -> _Submission:
    state = state_of(epoch) if kind == "last" else state_of(epoch, **{BEST_BY: "val"})
    return _Submission(directory, state, final, kind != "best", kind != "last")


def save(directory: Path, *steps: tuple[int, str]) -> None:
    with BackgroundWriter() as background:
        for epoch, kind in steps:
            done = background._write(submission(directory, epoch, kind))
            assert done.error is None, done.error
            assert (done.epoch, done.last, done.best) == (epoch, kind != "best", kind != "last")


def recovered(directory: Path) -> TrainingState | None:
    """The best weights that a new start finds; they must lie under their name."""
    progress, _ = recover_progress(directory)
    found, _ = recover_best(directory, progress, best_epoch(0 if progress is None else progress.epoch))
    read, path, warnings = read_best(directory, with_arrays=True)
    assert not warnings
    assert (None if read is None else read.epoch) == (None if found is None else found.epoch)
    if read is not None:
        assert path == directory / "best.h5"
        assert set(read.arrays) >= {"weights/w"}
        assert (read.arrays["weights/w"] == read.epoch).all()
    return read


class Killed(BaseException):
    """Stands in for the end of the process."""


@pytest.mark.parametrize("links", [True, False])
def test_after_a_kill_at_any_call_the_best_weights_are_whole_and_of_the_right_epoch(tmp_path, links):
    def no_link(*args):
        raise OSError(errno.EPERM, "no links here")

    seen = set()
    for num_calls in itertools.count():
        left = num_calls
        directory = tmp_path / str(num_calls)

        def killing(function):
            def call(*args, **kwargs):
                nonlocal left
                if left == 0:
                    raise Killed
                left -= 1
                return function(*args, **kwargs)

            return call

        with pytest.MonkeyPatch.context() as patch:
            for module in (writer, best):
                patch.setattr(module, "remove_quietly", lambda path: path.unlink(missing_ok=True))
                patch.setattr(module, "sync_directory", killing(module.sync_directory))
                patch.setattr(module, "create_new", killing(module.create_new))
            patch.setattr(os, "replace", killing(os.replace))
            patch.setattr(os, "fsync", killing(os.fsync))
            patch.setattr(os, "link", killing(os.link if links else no_link))
            try:
                save(directory, *STEPS)
                finished = True
            except Killed:
                finished = False
        before, _, warnings = read_best(directory, with_arrays=True)
        assert not warnings
        assert before is None or (before.arrays["weights/w"] == before.epoch).all()
        progress, _ = recover_progress(directory)
        found = recovered(directory)
        if progress is not None:
            assert found is not None
            assert found.epoch == best_epoch(progress.epoch)
            seen.add(found.epoch)
            save(directory, (8, "both"))  # training goes on
            assert recovered(directory).epoch == 8
        assert len(list(directory.glob("*"))) <= 4 if directory.exists() else True
        if finished:
            break
    assert seen == {1, 2, 6, 8}
    assert num_calls > 30


def test_a_best_epoch_that_is_the_last_one_takes_no_further_bytes(tmp_path):
    save(tmp_path, (1, "both"))
    assert (tmp_path / "best.h5").samefile(tmp_path / "checkpoint.h5")
    save(tmp_path, (2, "last"), (3, "last"))
    assert recovered(tmp_path).epoch == 1  # epoch 2 is better, but nobody has saved it
    save(tmp_path, (4, "best"))
    state, _, _ = read_best(tmp_path, with_arrays=True)
    assert set(state.arrays) == {"weights/w"}
    assert (tmp_path / "best.h5").stat().st_size < (tmp_path / "checkpoint.h5").stat().st_size


def test_best_weights_of_epochs_that_are_trained_again_are_removed(tmp_path):
    save(tmp_path, (1, "both"), (2, "best"), (3, "last"), (4, "best"), (6, "best"))
    assert read_best(tmp_path, with_arrays=False)[0].epoch == 6
    assert recovered(tmp_path).epoch == 2
    recover_best(tmp_path, None, 0)
    assert read_best(tmp_path, with_arrays=False)[0] is None


def test_damaged_best_weights_are_reported_and_the_ones_before_are_used(tmp_path):
    save(tmp_path, (1, "both"), (2, "best"))
    os.truncate(tmp_path / "best.h5", 1000)
    state, path, (warning,) = read_best(tmp_path, with_arrays=False)
    assert (state.epoch, path.name) == (1, "best.previous.h5")
    assert f"{tmp_path / 'best.h5'}: it is truncated" in warning
    progress, _ = recover_progress(tmp_path)
    assert recover_best(tmp_path, progress, 1)[0].epoch == 1


def test_lost_best_weights_are_replaced_by_those_before_with_a_word(tmp_path):
    save(tmp_path, (1, "both"), (2, "best"), (3, "last"))
    (tmp_path / "best.h5").unlink()
    progress, _ = recover_progress(tmp_path)
    found, (warning,) = recover_best(tmp_path, progress, 2)
    assert found.epoch == 1
    assert (
        "best.h5: the best weights, of epoch 2, are lost; those of the best epoch before, 1, are" in warning
    )
    assert recovered(tmp_path).epoch == 1


def another_training(directory: Path, epoch: int) -> None:
    """Put best weights of another training of the same job in place, whose epochs took another time."""
    state = state_of(epoch, **{BEST_BY: "val"})
    history = tuple(replace(record, seconds=9.0) for record in state.history)
    with BackgroundWriter() as background:
        other = replace(state, history=history, arrays={"weights/w": np.full(400, -1.0)})
        background.submit(directory.parent / "other", other, last=False, best=True)
    (directory.parent / "other" / "best.h5").replace(directory / "best.h5")


def test_whole_best_weights_of_another_training_are_set_aside_with_a_word(tmp_path):
    folder = tmp_path / "dnn"
    save(folder, (1, "both"), (2, "best"), (3, "last"))
    another_training(folder, 2)
    progress, _ = recover_progress(folder)
    assert not holds_best(folder, progress, 2)
    chosen, (warning,) = read_weights(folder)
    assert (chosen.epoch, chosen.path.name) == (1, "best.previous.h5")
    assert "best.h5: belongs to another training than the checkpoint" in warning
    found, (warning,) = recover_best(folder, progress, 2)
    assert found.epoch == 1
    assert "best.h5: belongs to another training than the checkpoint" in warning
    assert "its weights, of epoch 2, are kept as best.unused.h5" in warning
    assert "the best weights, of epoch 2, are lost; those of the best epoch before, 1, are" in warning
    assert recovered(folder).epoch == 1
    assert (read_file(folder / "best.unused.h5", with_arrays=True).arrays["weights/w"] == -1.0).all()
    another_training(folder, 2)
    assert [recover_best(folder, progress, 2)[0], (folder / "best.h5").exists()] == [None, False]
    assert (folder / "best.unused-2.h5").exists()


def test_best_weights_of_an_earlier_moment_are_read_with_a_word(tmp_path):
    save(tmp_path, (1, "both"))
    with BackgroundWriter() as background:
        background.submit(tmp_path, state_of(3, **{BEST_EPOCH: 2}))
    chosen, (warning,) = read_weights(tmp_path)
    assert chosen.epoch == 1
    assert "best.h5: holds the weights of epoch 1, but those of the best epoch, 2, are lost" in warning


def test_the_last_whole_weights_are_set_aside_when_the_checkpoints_are_lost(tmp_path):
    save(tmp_path, (1, "both"), (2, "best"))
    (warning,) = recover_best(tmp_path, None, 0, is_lost=True)[1]
    assert "best.h5: belongs to no checkpoint that is left; its weights, of epoch 2, are kept as" in warning
    (kept,) = tmp_path.glob("best.*")
    assert read_file(kept, with_arrays=True).arrays["weights/w"][0] == 2
    assert recover_best(tmp_path, None, 0, is_lost=True) == (None, [])
    assert kept.exists()


def test_a_full_disk_keeps_the_old_best_weights(tmp_path, monkeypatch):
    save(tmp_path, (1, "both"))
    monkeypatch.setattr(best, "create_new", lambda path: open("/dev/full", "wb"))  # noqa: SIM115
    with BackgroundWriter() as background:
        done = background._write(submission(tmp_path, 2, "best"))
    assert isinstance(done.error, OutputError)
    assert "best.h5: cannot write the best weights of 'dnn': No space left" in str(done.error)
    assert recovered(tmp_path).epoch == 1


def test_what_cannot_be_read_or_removed_is_an_error_that_says_so(tmp_path):
    (tmp_path / "best.h5").mkdir()
    with pytest.raises(CheckpointError, match=r"best\.h5: cannot read the best weights"):
        read_best(tmp_path, with_arrays=False)
    with pytest.raises(CheckpointError, match=r"best\.h5: cannot be removed"):
        forget_best(tmp_path)


@pytest.mark.parametrize(
    ("waiting", "needed"),
    [
        ("last1 last2", "last2"),
        ("best1 best2", "best2"),
        ("both1 last2", "both1 last2"),
        ("both1 both2", "both2"),
        ("both1 best2", "both1 best2"),
        ("both1 best2 last3", "best2 last3"),
        ("best1 last1 best2", "best1 last1 best2"),
        ("best1 last1 best2 last2", "best2 last2"),
        ("best1 best2 last2 best3 last3 best4", "best3 last3 best4"),
    ],
)
def test_a_waiting_state_is_dropped_once_newer_ones_hold_all_of_it(tmp_path, waiting, needed):
    def parse(text: str) -> list[_Submission]:
        return [submission(tmp_path, int(word[4:]), word[:4]) for word in text.split()]

    queue: deque[_Submission] = deque()
    for job in parse(waiting):
        queue = _still_needed([*queue, job])
        assert len(queue) <= 3
    shown = [(job.state.epoch, job.last, job.best) for job in queue]
    assert shown == [(job.state.epoch, job.last, job.best) for job in parse(needed)]


def test_weights_are_read_with_what_they_are(tmp_path):
    save(tmp_path, (1, "both"), (2, "best"), (3, "last"))
    chosen, warnings = read_weights(tmp_path)
    assert not warnings
    assert (chosen.which, chosen.epoch, chosen.monitor) == ("best", 2, "val")
    assert chosen.in_words() == "best, epoch 2, val 0.5"
    assert set(chosen.arrays) == {"weights/w"}
    last, _ = read_weights(tmp_path, "last")
    assert (last.which, last.epoch, last.in_words()) == ("last", 3, "last, epoch 3")
    assert (last.arrays["weights/w"] == 3).all()


def test_weights_that_are_not_kept_are_refused_with_those_that_are(tmp_path):
    with pytest.raises(InputError, match="holds no whole checkpoint; train it first"):
        read_weights(tmp_path)
    save(tmp_path, (3, "last"))
    assert read_weights(tmp_path)[0].which == "last"
    with pytest.raises(InputError, match=r"best weights are not kept, only the last ones \(epoch 3\)"):
        read_weights(tmp_path, "best")


def test_a_job_that_keeps_only_its_best_weights_keeps_its_progress(tmp_path):
    save(tmp_path, (1, "both"), (2, "both"), (3, "last"))
    with BackgroundWriter() as background:
        background.submit(tmp_path, replace(state_of(3, **{ONLY_BEST: True}), arrays={}))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "best.h5",
        "best.previous.h5",
        "checkpoint.h5",
    ]
    state, warnings = read_checkpoint(tmp_path)
    assert (state.epoch, state.arrays, warnings) == (3, {}, [])
    assert read_weights(tmp_path)[0].epoch == 2
    with pytest.raises(InputError, match=r"last weights \(epoch 3\) are not kept, only the best ones"):
        read_weights(tmp_path, "last")
    forget_best(tmp_path)
    with pytest.raises(
        InputError, match=r"the only ones that were kept, are lost; run the same 'hpcbal run'"
    ):
        read_weights(tmp_path)

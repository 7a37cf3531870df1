"""Ranks notice that nobody minds them any more."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hpcbal.runtime.handoff import launch_dir
from hpcbal.runtime.handoff.launch_dir import (
    ABORTED,
    LAST_WORDS,
    ORPHANED,
    STARTER,
    STOPPING,
    StarterWatch,
    leave_last_words,
    tell_aborted,
    tell_stopping,
)

NO_HPCBAL = "the hpcbal that started the ranks is gone"


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The launch directory of a start by this very process."""
    monkeypatch.setenv("HPCBAL_LAUNCH_DIR", str(tmp_path))
    monkeypatch.setattr(launch_dir, "LOOK_INTERVAL_S", 0.0)
    (tmp_path / STARTER).write_text(str(os.getpid()))
    return tmp_path


def test_as_long_as_both_live_there_is_no_reason_to_stop(directory: Path):
    watch = StarterWatch()
    assert [watch.lost() for _ in range(3)] == [None] * 3


def test_a_killed_mpirun_is_a_reason_once(directory: Path):
    watch = StarterWatch()
    assert watch.lost() is None
    (directory / ORPHANED).touch()
    assert [watch.lost(), watch.lost()] == ["the mpirun that started the ranks is gone", None]


def test_a_killed_hpcbal_is_a_reason_once(directory: Path):
    process = subprocess.Popen(["true"])
    process.wait()
    (directory / STARTER).write_text(str(process.pid))
    watch = StarterWatch()
    assert [watch.lost(), watch.lost()] == [NO_HPCBAL, None]


def test_an_hpcbal_that_has_ended_before_the_first_look_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It has removed the directory by then."""
    monkeypatch.setenv("HPCBAL_LAUNCH_DIR", str(tmp_path / "removed"))
    assert StarterWatch().lost() == NO_HPCBAL


def test_without_an_hpcbal_that_started_them_ranks_watch_nobody(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("HPCBAL_LAUNCH_DIR", raising=False)
    assert StarterWatch().lost() is None


def test_last_words_are_left_to_the_hpcbal_that_started_the_ranks(directory: Path):
    assert leave_last_words("rank 3 died")
    assert (directory / LAST_WORDS).read_text() == "rank 3 died"


def test_last_words_that_cannot_be_left_are_the_rank_s_to_tell(directory: Path):
    (directory / f"{LAST_WORDS}.tmp").mkdir()  # stands for a full disk
    assert not leave_last_words("rank 3 died")
    assert not (directory / LAST_WORDS).exists()


def test_last_words_are_not_left_to_an_hpcbal_that_was_killed(directory: Path):
    process = subprocess.Popen(["true"])
    process.wait()
    (directory / STARTER).write_text(str(process.pid))
    assert not leave_last_words("rank 3 died")
    assert not (directory / LAST_WORDS).exists(), "nobody will read it"


def test_without_an_hpcbal_that_started_them_ranks_tell_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HPCBAL_LAUNCH_DIR", str(tmp_path / "removed"))
    assert not leave_last_words("rank 3 died")
    monkeypatch.delenv("HPCBAL_LAUNCH_DIR")
    assert not leave_last_words("rank 3 died")


def test_hints_are_left_where_they_can_be_and_nothing_happens_where_not(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tell_stopping(3)
    assert not (directory / STOPPING).exists(), "only rank 0 knows"
    tell_stopping(0)
    tell_aborted()
    assert (directory / STOPPING).exists()
    assert (directory / ABORTED).exists()
    monkeypatch.setenv("HPCBAL_LAUNCH_DIR", str(tmp_path / "removed"))
    tell_stopping(0)
    tell_aborted()
    monkeypatch.delenv("HPCBAL_LAUNCH_DIR")
    tell_stopping(0)
    tell_aborted()
    assert not (tmp_path / "removed").exists()

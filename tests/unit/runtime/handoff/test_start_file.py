"""Facts count once and only if complete, and ranks detect that `hpcbal run` is gone."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.cluster.job_end import UNDECIDED
from hpcbal.errors import OutputError
from hpcbal.runtime.handoff import start_file
from hpcbal.runtime.handoff.end_file import note_end, note_progress
from hpcbal.runtime.handoff.start_file import NAME, StarterWatch, StartFacts, StartFile, facts_in

NO_HPCBAL = "the 'hpcbal run' that started the ranks is gone"


def write_first_line(directory: Path, pid: int) -> None:
    (directory / NAME).write_text(json.dumps({"starter_pid": pid}) + "\n")


def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The launch directory of a start by this very process."""
    monkeypatch.setenv("HPCBAL_LAUNCH_DIR", str(tmp_path))
    monkeypatch.setattr(start_file, "LOOK_INTERVAL_S", 0.0)
    write_first_line(tmp_path, os.getpid())
    return tmp_path


def test_what_one_states_all_know(directory: Path):
    rank, starter = StartFile.of_rank(), StartFile(directory)
    assert rank.add(is_ready=True)
    starter.hint(is_orphaned=True)
    assert rank.leave_exit_code(0, 3) == 0, "mpirun would take any other code for a crash"
    known = StartFacts(starter_pid=os.getpid(), is_ready=True, is_orphaned=True, exit_code=3)
    assert rank.read() == starter.read() == known


def test_the_first_one_to_state_a_fact_counts(directory: Path):
    start = StartFile.of_rank()
    start.hint(abort_code=70)
    start.hint(abort_code=1)
    assert start.leave_last_words("rank 3 died")
    assert start.leave_last_words("rank 0 died")
    assert start.read().abort_code == 70
    assert start.read().last_words == "rank 3 died"


def test_only_rank_0_decides_the_end(directory: Path):
    assert StartFile.of_rank().leave_exit_code(3, 75) == 0
    assert StartFile.of_rank().read().exit_code is None


@given(st.text(), st.integers(0, 200))
def test_a_line_is_seen_whole_or_not_at_all(words: str, num_bytes: int):
    before = b'{"is_ready": true}\n'
    line = json.dumps({"last_words": words}).encode() + b"\n"
    seen = facts_in(before + line[:num_bytes])
    assert seen.last_words == (words if num_bytes >= len(line) else None)
    assert seen.is_ready


def test_what_is_cut_off_hides_no_later_line(directory: Path):
    with (directory / NAME).open("ab") as file:
        file.write(b'\n{"last_wo')  # the disk was full
    StartFile.of_rank().add(exit_code=75)
    assert StartFile.of_rank().read().exit_code == 75


def test_lines_of_many_ranks_do_not_mix(directory: Path):
    """All write at the same time."""
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=_state_often, args=(directory, rank)) for rank in range(4)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
    lines = [json.loads(line) for line in (directory / NAME).read_text().splitlines() if line]
    stated = [line["last_words"] for line in lines[1:]]
    assert sorted(stated) == sorted(f"{rank}" * 500 for rank in range(4) for _ in range(100))


def _state_often(directory: Path, rank: int) -> None:
    for _ in range(100):
        StartFile(directory).add(last_words=f"{rank}" * 500)


def test_a_full_disk_is_an_error_unless_it_is_only_a_hint(directory: Path, monkeypatch: pytest.MonkeyPatch):
    def full(descriptor: int, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    start = StartFile.of_rank()
    with monkeypatch.context() as here:
        here.setattr(os, "write", full)
        start.hint(is_stopping=True)
        assert not start.leave_last_words("rank 3 died"), "the rank must report it"
        with pytest.raises(OutputError, match=r"start\.jsonl: cannot write: No space left on device"):
            start.add(is_ready=True)
        here.setattr(os, "write", lambda descriptor, content: len(content) - 1)
        with pytest.raises(OutputError, match="the file system is full"):
            start.add(is_ready=True)
    assert start.read() == StartFacts(starter_pid=os.getpid())


def test_last_words_are_not_left_to_an_hpcbal_that_was_killed(directory: Path):
    write_first_line(directory, dead_pid())
    assert not StartFile.of_rank().leave_last_words("rank 3 died")
    assert StartFile.of_rank().read().last_words is None, "no process will read it"


@pytest.mark.parametrize("is_removed", [True, False], ids=["removed", "never there"])
def test_without_an_hpcbal_run_facts_are_stated_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_removed: bool
):
    monkeypatch.delenv("HPCBAL_LAUNCH_DIR", raising=False)
    if is_removed:
        monkeypatch.setenv("HPCBAL_LAUNCH_DIR", str(tmp_path / "removed"))
    start = StartFile.of_rank()
    assert not start.add(is_ready=True)
    assert not start.leave_last_words("rank 3 died")
    assert start.read() == StartFacts()
    assert start.leave_exit_code(0, 75) == (0 if is_removed else 75), (
        "under a user's own mpirun it is the code"
    )
    assert list(tmp_path.iterdir()) == []


def test_as_long_as_both_live_there_is_no_reason_to_stop(directory: Path):
    watch = StarterWatch(StartFile.of_rank())
    assert [watch.lost() for _ in range(3)] == [None] * 3


def test_a_killed_mpirun_is_a_reason_once(directory: Path):
    watch = StarterWatch(StartFile.of_rank())
    assert watch.lost() is None
    StartFile(directory).hint(is_orphaned=True)
    assert [watch.lost(), watch.lost()] == ["the mpirun that started the ranks is gone", None]


def test_a_killed_hpcbal_is_a_reason_once(directory: Path):
    write_first_line(directory, dead_pid())
    watch = StarterWatch(StartFile.of_rank())
    assert [watch.lost(), watch.lost()] == [NO_HPCBAL, None]


def test_an_hpcbal_that_has_ended_before_the_first_look_is_a_reason(directory: Path):
    """It has removed the directory by then."""
    (directory / NAME).unlink()
    assert StarterWatch(StartFile.of_rank()).lost() == NO_HPCBAL


def test_an_hpcbal_that_removes_its_files_while_it_ends_is_not_gone_yet(directory: Path):
    watch = StarterWatch(StartFile.of_rank())
    (directory / NAME).unlink()
    assert watch.lost() is None


def test_without_an_hpcbal_that_started_them_ranks_watch_nobody(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("HPCBAL_LAUNCH_DIR", raising=False)
    assert StarterWatch(StartFile.of_rank()).lost() is None


def test_rank_0_notes_for_a_job_script_how_the_run_goes_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = tmp_path / "end"
    monkeypatch.setenv("HPCBAL_END_FILE", str(noted))
    note_end(UNDECIDED)
    assert not noted.exists(), "only a file that the script has created"
    noted.touch()
    note_end(UNDECIDED)
    StartFile(None).leave_exit_code(1, 75)
    note_progress()
    note_progress()
    StartFile(None).leave_exit_code(0, 75)
    assert noted.read_text() == "undecided\nprogress\n75\n"

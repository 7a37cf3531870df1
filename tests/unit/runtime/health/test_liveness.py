"""A rank whose process is gone is noticed, named with its rank, role and host, and ends the job."""

from __future__ import annotations

import errno
import os
import queue
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcbal.cluster.job_end import end_of_start
from hpcbal.cluster.roles import RankInfo
from hpcbal.runtime.handoff.start_file import NAME, StartFile
from hpcbal.runtime.health import liveness
from hpcbal.runtime.health.liveness import ROW_BYTES, Liveness
from hpcbal.telemetry.resources import processes
from hpcbal.telemetry.resources.processes import Endings, process_is_gone
from hpcbal.telemetry.views.ensemble_table import new_status
from hpcbal.telemetry.views.read_status import note_death, read_status
from hpcbal.telemetry.views.status import death_note, write_status


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process
        process.kill()


def test_a_process_is_there_until_it_ends_and_a_zombie_is_gone(sleeper):
    assert not process_is_gone(os.getpid())
    assert not process_is_gone(sleeper.pid)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)  # dead, and not yet buried
    assert process_is_gone(sleeper.pid)
    sleeper.wait()
    assert process_is_gone(sleeper.pid)


def test_a_process_that_is_buried_while_its_state_is_read_is_gone(sleeper, monkeypatch):
    """Its file could be opened, and then there was nothing to read any more."""
    open_file = Path.open

    def open_and_bury(path: Path, *args: Any, **kwargs: Any) -> Any:
        file = open_file(path, *args, **kwargs)
        if str(sleeper.pid) in path.parts:
            sleeper.kill()
            sleeper.wait()
        return file

    monkeypatch.setattr(Path, "open", open_and_bury)
    assert process_is_gone(sleeper.pid)
    assert sleeper.returncode is not None


@pytest.mark.parametrize("name", [b"\xff\xfe", b") Z ("])
def test_a_process_may_have_any_name(name: bytes):
    script = f"open('/proc/self/comm', 'wb').write({name!r}); print(flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script], **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        assert name in Path(f"/proc/{process.pid}/stat").read_bytes()
        assert not process_is_gone(process.pid)
        process.communicate(b"\n")


def refuse(pid: int) -> int:
    """As a kernel or a sandbox without `pidfd_open` does."""
    raise OSError(errno.EPERM, "Operation not permitted")


@pytest.fixture(params=["held", "read", "missing"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How a process is watched: by a descriptor; or by /proc, without one or with a Python without them."""
    if request.param == "read":
        monkeypatch.setattr(os, "pidfd_open", refuse)
    elif request.param == "missing":
        monkeypatch.delattr(os, "pidfd_open")
    return str(request.param)


def test_the_end_of_a_process_is_noticed_once(how, sleeper):
    endings = Endings()
    assert endings.add(os.getpid())
    assert endings.add(sleeper.pid)
    assert not endings.add(2**22 - 7)  # no such process here: another pid namespace
    assert endings.wait(0.0) == set()
    sleeper.kill()
    ended = endings.wait(20.0)
    while not ended:  # without a descriptor, it waits a moment only
        ended = endings.wait(20.0)
    assert ended == {sleeper.pid}
    assert endings.wait(0.0) == set()


def test_a_process_is_watched_on_when_its_descriptor_was_closed_and_used_again(sleeper, monkeypatch):
    opened = []

    def pidfd_open(pid: int) -> int:
        opened.append(os.open(os.devnull, os.O_RDONLY))  # always readable
        return opened[0]

    monkeypatch.setattr(os, "pidfd_open", pidfd_open)
    endings = Endings()
    endings.add(sleeper.pid)
    assert endings.wait(0.0) == set()
    os.fstat(opened[0])  # it stays open: it belongs to somebody else
    sleeper.kill()
    sleeper.wait()
    assert endings.wait(20.0) == {sleeper.pid}
    os.close(opened[0])


def test_ranks_that_live_are_not_looked_at(sleeper, monkeypatch):
    looks = []
    monkeypatch.setattr(processes, "process_is_gone", looks.append)
    endings = Endings()
    endings.add(sleeper.pid)
    looks.clear()
    for _ in range(10):
        endings.wait(0.0)
    assert looks == []


class Watched:
    """Rank 0 of a node with ranks of these processes, whose liveness watches; ends are noted."""

    def __init__(
        self, *pids: int, start: StartFile | None = None, status: Path | None = None, elsewhere: int = 0
    ) -> None:
        self.codes: queue.Queue[int] = queue.Queue()
        ranks = [RankInfo(rank, 0, "here", pid, 0) for rank, pid in enumerate([os.getpid(), *pids])]
        self.liveness = Liveness(0, start)
        self.liveness.share(bytearray(ROW_BYTES * len(ranks)), ROW_BYTES * len(ranks), 0)
        for rank in range(1, len(ranks)):
            other = Liveness(rank)
            other.note(f"training {rank}b")
            self.liveness._rows[rank][:] = other._mine
        self.liveness.start()
        self.liveness.watch(
            0,
            [*ranks, *(RankInfo(len(ranks) + more, 1, "there", 1, 0) for more in range(elsewhere))],
            lambda rank: ["scheduler", "preprocessor", "trainer"][rank],
            self.codes.put,
            lambda words: None if status is None else note_death(status, words),
        )


def test_a_killed_rank_is_named_once(how, sleeper, capfd):
    watched = Watched(os.getpid(), sleeper.pid)
    sleeper.kill()
    sleeper.wait()
    assert watched.codes.get(timeout=20) == 1
    watched.liveness.stop()
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(
        f"hpcbal: rank 2 (trainer, pid {sleeper.pid}) on host here (last seen training 2b) died"
    )
    assert "kill -9" in line


@pytest.mark.parametrize(("num_free", "is_named"), [(0, True), (200, True), (2**20, False)])
def test_full_shared_memory_is_named_as_what_may_have_killed_a_rank(
    sleeper, capfd, monkeypatch, num_free, is_named
):
    space = SimpleNamespace(f_bavail=num_free, f_frsize=4096)
    monkeypatch.setattr(liveness.os, "statvfs", {"/dev/shm": space}.__getitem__)
    watched = Watched(sleeper.pid)
    sleeper.kill()
    sleeper.wait()
    assert watched.codes.get(timeout=20) == 1
    watched.liveness.stop()
    found = f"; or SIGBUS, because /dev/shm is full: {num_free * 4096} bytes are free)"
    assert (found in capfd.readouterr().err) == is_named


def test_after_stop_ranks_may_end(sleeper):
    watched = Watched(sleeper.pid)
    watched.liveness.stop()
    sleeper.kill()
    sleeper.wait()
    with pytest.raises(queue.Empty):
        watched.codes.get(timeout=0.6)


def test_a_rank_that_cannot_be_seen_is_not_watched():
    watched = Watched(2**22 - 7)  # no such process here: another pid namespace
    with pytest.raises(queue.Empty):
        watched.codes.get(timeout=0.6)
    watched.liveness.stop()


@pytest.mark.parametrize("is_started_by_hpcbal", [True, False])
def test_a_death_is_reported_by_a_rank_or_left_to_hpcbal_run(
    sleeper, tmp_path: Path, capfd, is_started_by_hpcbal: bool
):
    """Never both; and the job is ended afterwards."""
    start = StartFile(tmp_path if is_started_by_hpcbal else None)
    (tmp_path / NAME).touch()
    start.add(starter_pid=os.getpid())
    status = tmp_path / "status.json"
    write_status(status, new_status("a", 2))
    watched = Watched(os.getpid(), sleeper.pid, start=start, status=status)
    assert start.read().is_watched == is_started_by_hpcbal
    sleeper.kill()
    sleeper.wait()
    assert watched.codes.get(timeout=20) == 1
    watched.liveness.stop()
    words = f"rank 2 (trainer, pid {sleeper.pid}) on host here (last seen training 2b) died"
    assert words in str(death_note(read_status(tmp_path)))
    assert (words in str(start.read().last_words)) == is_started_by_hpcbal
    assert (words in capfd.readouterr().err) != is_started_by_hpcbal


@pytest.mark.parametrize(
    ("noted", "reported"),
    [("", "rank 2 (trainer"), ("lost: rank 3 died\n", "rank 3 died"), ("2\n", None)],
)
def test_a_job_script_reports_the_death_that_came_first(
    sleeper, tmp_path: Path, monkeypatch, capfd, noted: str, reported: str | None
):
    """Others follow from it, also from a rank's own end of the job; on several nodes within milliseconds."""
    monkeypatch.setattr(liveness, "TOGETHER_S", 3600.0)
    monkeypatch.setenv("HPCBAL_END_FILE", str(tmp_path / "end"))
    (tmp_path / "end").write_text(f"undecided\n{noted}")
    status = tmp_path / "status.json"
    write_status(status, new_status("a", 2))
    watched = Watched(os.getpid(), sleeper.pid, status=status, elsewhere=1)
    sleeper.kill()
    sleeper.wait()
    assert watched.codes.get(timeout=20) == 1
    watched.liveness.stop()
    end = end_of_start((tmp_path / "end").read_text().splitlines(), 14)
    assert (end.code, end.is_lost) == ((2, False) if reported is None else (1, True))
    assert end.sentence.startswith(reported or "")
    assert str(death_note(read_status(tmp_path))).startswith(str(reported))
    assert "a rank or node elsewhere was lost (of there): see" in end.sentence or noted
    assert ("perhaps node there was lost" in end.sentence) == end.is_lost
    assert "died" not in capfd.readouterr().err


def test_a_note_that_is_too_long_is_cut():
    liveness = Liveness()
    liveness.note("a" * 500)
    assert set(str(liveness)) == {"a"}
    liveness.note("b")
    assert str(liveness) == "b"

"""A process that is gone is noticed, named with its rank, role and host, and ends the job."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcbal.cluster.roles import RankInfo
from hpcbal.runtime.handoff.start_file import NAME, StartFile
from hpcbal.runtime.health.watchdog import PeerWatch, PeerWatchdog
from hpcbal.telemetry import new_status, read_status, write_status
from hpcbal.telemetry.host.processes import process_is_gone
from hpcbal.telemetry.views.read_status import note_death
from hpcbal.telemetry.views.status import death_note


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


def watch(*pids: int) -> tuple[PeerWatchdog, queue.Queue[str]]:
    heard: queue.Queue[str] = queue.Queue()
    me = RankInfo(0, 0, "here", os.getpid(), 0)
    peers = [RankInfo(rank, 0, "here", pid, 0) for rank, pid in enumerate(pids, start=1)]
    dog = PeerWatchdog(
        me,
        peers,
        lambda rank: "trainer" if rank > 1 else "preprocessor",
        lambda rank: f"training {rank}b",
        heard.put,
    )
    dog.start()
    return dog, heard


def test_a_killed_peer_is_named_once(sleeper):
    _, heard = watch(os.getpid(), sleeper.pid)
    sleeper.kill()
    sleeper.wait()
    message = heard.get(timeout=20)
    assert message.startswith(
        f"rank 2 (trainer, pid {sleeper.pid}) on host here (last seen training 2b) died"
    )
    assert "kill -9" in message
    assert heard.empty()


def test_after_stop_peers_may_end(sleeper):
    dog, heard = watch(sleeper.pid)
    dog.stop()
    sleeper.kill()
    sleeper.wait()
    with pytest.raises(queue.Empty):
        heard.get(timeout=0.6)


def test_a_peer_that_cannot_be_seen_is_not_watched():
    dog, heard = watch(2**22 - 7)  # no such process here: another pid namespace
    with pytest.raises(queue.Empty):
        heard.get(timeout=0.6)
    dog.stop()


@pytest.mark.parametrize("is_started_by_hpcbal", [True, False])
def test_a_death_is_reported_by_a_rank_or_left_to_hpcbal_run(
    sleeper, tmp_path: Path, capfd, is_started_by_hpcbal: bool
):
    """Never both; and the job is ended afterwards."""
    start = StartFile(tmp_path if is_started_by_hpcbal else None)
    (tmp_path / NAME).touch()
    start.add(starter_pid=os.getpid())
    codes: queue.Queue[int] = queue.Queue()
    roles: Any = SimpleNamespace(
        ranks=[RankInfo(rank, 0, "here", pid, 0) for rank, pid in enumerate([os.getpid(), sleeper.pid])],
        role_of=lambda rank: ["scheduler", "trainer"][rank],
    )
    end: Any = SimpleNamespace(
        announced=lambda: False, abort=codes.put, activity_of=["", "training b"].__getitem__
    )
    status = tmp_path / "status.json"
    write_status(status, new_status("a", 2))
    PeerWatch(0, roles.ranks, roles.role_of, end, start, lambda words: note_death(status, words))
    assert start.read().is_watched == is_started_by_hpcbal
    sleeper.kill()
    sleeper.wait()
    assert codes.get(timeout=20) == 1
    words = f"rank 1 (trainer, pid {sleeper.pid}) on host here (last seen training b) died"
    assert words in str(death_note(read_status(tmp_path)))
    assert (words in str(start.read().last_words)) == is_started_by_hpcbal
    assert (words in capfd.readouterr().err) != is_started_by_hpcbal

"""Launch directories are removed once no process holds them, and never before."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpcbal.errors import OutputError
from hpcbal.runtime import launch
from hpcbal.runtime.handoff import start_machine
from hpcbal.runtime.handoff.launch_dir import launch_directory, shortage_of_inodes, sweep
from hpcbal.runtime.handoff.start_file import NAME, StartFile
from hpcbal.runtime.handoff.supervision import Requests
from hpcbal.telemetry.resources.processes import process_is_gone

Start = Callable[[str], tuple[subprocess.Popen[str], str]]

STARTER = """
from hpcbal.runtime.handoff.launch_dir import launch_directory
with launch_directory() as (directory, held):
    print(directory, flush=True)
    input()
"""
# As `hpcbal run` and mpirun: the child has the descriptor, and nothing else of the launch.
STARTER_WITH_CHILD = """
import subprocess
from hpcbal.runtime.handoff.launch_dir import launch_directory
with launch_directory() as (directory, held):
    child = subprocess.Popen(["sleep", "600"], pass_fds=(held,))
    print(directory, child.pid, flush=True)
    input()
"""
RANK = """
import pathlib
from hpcbal.runtime.handoff.launch_dir import hold
from hpcbal.runtime.handoff.start_file import StartFile
hold(StartFile(pathlib.Path({directory!r})))
print("held", flush=True)
input()
"""


@pytest.fixture(autouse=True)
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, of this process and of those it starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a script; gives its process and its first line."""
    processes: list[subprocess.Popen[str]] = []

    def start(script: str) -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-c", script]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def left(tmp: Path, name: str = "hpcbal-left", host: str | None = None) -> Path:
    """Make the directory that a killed start of this host has left, with files of its mpirun."""
    directory = tmp / name
    directory.mkdir(mode=0o700)
    first = {"starter_pid": 1, "locked_on": host or socket.gethostname()}
    (directory / NAME).write_text(json.dumps(first) + "\n")
    (directory / "ompi.123" / "1").mkdir(parents=True)
    (directory / "ompi.123" / "1" / "contact").write_text("uri")
    return directory


def test_a_directory_goes_with_its_start_or_with_the_next_one_after_a_kill(tmp: Path, start: Start):
    starter, name = start(STARTER)
    sweep()
    assert Path(name).is_dir()
    starter.communicate("\n")
    assert not Path(name).exists()
    starter, name = start(STARTER)
    kill(starter)
    assert Path(name).is_dir()
    sweep()
    assert list(tmp.iterdir()) == []


def test_a_directory_stays_as_long_as_mpirun_or_a_rank_lives(tmp: Path, start: Start):
    starter, line = start(STARTER_WITH_CHILD)
    name, child = line.split()
    kill(starter)
    sweep()
    assert Path(name).is_dir()
    rank, word = start(RANK.format(directory=name))
    assert word == "held"
    os.kill(int(child), 9)
    while not process_is_gone(int(child)):
        time.sleep(0.01)
    sweep()
    assert Path(name).is_dir()
    kill(rank)
    sweep()
    assert not Path(name).exists()


def test_only_what_is_surely_a_left_over_of_this_user_and_host_goes(tmp: Path):
    elsewhere = left(tmp, "elsewhere")
    (tmp / "hpcbal-link").symlink_to(elsewhere)
    (tmp / "hpcbal-file").write_text("mine")
    (tmp / "hpcbal-empty").mkdir(mode=0o700)
    left(tmp, "hpcbal-other-host", host="node17")
    left(tmp, "hpcbal-open-to-all").chmod(0o777)
    lock_elsewhere = left(tmp, "hpcbal-odd")
    (lock_elsewhere / NAME).unlink()
    (lock_elsewhere / NAME).symlink_to(elsewhere / NAME)
    (left(tmp, "hpcbal-of-something-else") / NAME).write_text("not a fact\n[1]\n")
    before = sorted(tmp.rglob("*"))
    gone = left(tmp)
    sweep()
    assert not gone.exists()
    assert sorted(tmp.rglob("*")) == before


def test_what_another_user_owns_stays(tmp: Path, monkeypatch: pytest.MonkeyPatch):
    directory = left(tmp)
    monkeypatch.setattr(os, "geteuid", lambda: directory.stat().st_uid + 1)
    sweep()
    assert directory.is_dir()


def test_where_files_cannot_be_locked_nothing_is_taken_for_a_left_over(
    tmp: Path, monkeypatch: pytest.MonkeyPatch
):
    def no_locks(descriptor: int, kind: int) -> None:
        raise OSError(38, "Function not implemented")

    with monkeypatch.context() as here:
        here.setattr("fcntl.flock", no_locks)
        made = launch_directory()
        directory, _ = made.__enter__()
    assert StartFile(directory).read().starter_pid == os.getpid(), "facts need no lock"
    sweep()
    assert directory.is_dir()
    made.__exit__(None, None, None)
    assert list(tmp.iterdir()) == []


def test_a_start_sweeps_and_its_ranks_inherit_the_hold(tmp: Path, monkeypatch: pytest.MonkeyPatch):
    gone = left(tmp)
    script = f'ls "{tmp}" > "{tmp}/seen"; ls -l /proc/self/fd > "{tmp}/open"; exit 70'
    monkeypatch.setattr(launch, "mpirun_command", lambda argv, ranks: ["sh", "-c", script])
    with Requests() as requests:
        assert launch.start_mpirun(["run", "a.yaml"], 6, requests) == 1
    assert not gone.exists()
    (own,) = [name for name in (tmp / "seen").read_text().split() if name.startswith("hpcbal-")]
    assert f"{own}/{NAME}" in (tmp / "open").read_text()
    assert not (tmp / own).exists()


def test_a_full_disk_is_reported_with_what_to_do(tmp: Path, monkeypatch: pytest.MonkeyPatch):
    def full(descriptor: int, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OutputError, match=r"cannot create a directory for temporary files: .*; set TMPDIR"):
        launch_directory().__enter__()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp))
    with pytest.raises(OutputError, match=r"start\.jsonl: cannot write: No space left"), launch_directory():
        pass
    assert list(tmp.iterdir()) == []


@pytest.fixture
def with_inodes(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int, int], None]:
    """Make a folder look as if its file system had so many inodes, and so many of them free."""

    def limit(folder: str, free: int, total: int) -> None:
        real = os.statvfs

        def statvfs(path: str | Path) -> os.statvfs_result:
            values = list(real(path))
            if str(path) == folder:
                values[5:8] = [total, free, free]
            return os.statvfs_result(values)

        monkeypatch.setattr(os, "statvfs", statvfs)

    return limit


def test_a_folder_without_inodes_is_named_with_their_number(
    with_inodes: Callable[[str, int, int], None],
) -> None:
    with_inodes("/dev/shm", 6, 20)
    found = shortage_of_inodes(3)
    assert found is not None
    assert not found[0], "it may be enough"
    assert "/dev/shm: no room for the files of MPI: 6 of 20 inodes are free" in found[1]
    with_inodes("/dev/shm", 2, 20)
    assert shortage_of_inodes(3)[0], "each rank needs one"  # type: ignore[index]
    with_inodes("/dev/shm", 0, 0)  # as file systems without such a limit
    with_inodes(tempfile.gettempdir(), 0, 0)
    assert shortage_of_inodes(3) is None


def test_nothing_is_started_where_no_file_can_be_made(with_inodes: Callable[[str, int, int], None]) -> None:
    with_inodes(tempfile.gettempdir(), 1, 16)
    with pytest.raises(OutputError, match=r"1 of 16 inodes are free.* set TMPDIR to another folder"):
        launch.start_mpirun([], 3, Requests())


@pytest.mark.parametrize(("speaks", "is_said"), [("", True), ("print('a', flush=True); ", False)])
def test_a_long_start_is_explained(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], speaks: str, is_said: bool
) -> None:
    monkeypatch.setattr(start_machine, "QUIET_S", 1.0)
    waits = [sys.executable, "-c", f"{speaks}import time; time.sleep(2.0)"]
    monkeypatch.setattr(launch, "mpirun_command", lambda argv, ranks: waits)
    launch.start_mpirun([], 3, Requests())
    err = capfd.readouterr().err
    assert (
        err.count(
            "hpcbal: the ranks have printed nothing for 1 s: they first load MPI, TensorFlow or PyTorch"
        )
        == is_said
    )


def test_few_inodes_are_reported_before_mpi_fails(
    with_inodes: Callable[[str, int, int], None],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with_inodes("/dev/shm", 6, 20)
    fails = [sys.executable, "-c", "import sys; sys.exit('of MPI')"]
    monkeypatch.setattr(launch, "mpirun_command", lambda argv, ranks: fails)
    assert launch.start_mpirun([], 3, Requests()) == 1
    first, second, *_, last = capfd.readouterr().err.splitlines()
    assert first.startswith("warning: /dev/shm: no room for the files of MPI: 6 of 20 inodes are free")
    assert second == "of MPI"
    assert last.startswith("hpcbal: perhaps the reason: /dev/shm: no room")

"""Two runs never share a directory; a killed one does not block the next."""

import json
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from hpcbal.errors import OutputError
from hpcbal.telemetry.claim import run_lock
from hpcbal.telemetry.claim.run_lock import RunLock, clear_dead_lock
from hpcbal.telemetry.resources.processes import identity_of


def write_lock(directory, **fields):
    lock = {"host": "elsewhere", "pid": 1, "token": "other", "beat": 0, "time": "2024-01-01T00:00:00.000Z"}
    (directory / "run.lock").write_text(json.dumps({**lock, **fields}))


def dead_process() -> dict[str, object]:
    """Return the words of a lock about a process that has ended."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        return {"pid": process.pid, **identity_of(process.pid)}


def wait_until(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def is_lost(lock: RunLock) -> bool:
    try:
        lock.check()
    except OutputError as error:
        return "has taken over" in str(error)
    return False


def test_the_lock_is_there_while_held_and_gone_after(tmp_path):
    with RunLock(tmp_path) as lock:
        assert json.loads((tmp_path / "run.lock").read_text())["pid"] == os.getpid()
        lock.check()
    assert list(tmp_path.iterdir()) == []


def test_a_second_run_on_this_host_is_refused_at_once_and_the_owner_named(tmp_path):
    write_lock(tmp_path, host="here", pid=os.getppid(), **identity_of(os.getppid()))
    with pytest.raises(
        OutputError, match=rf"another run is using .*process {os.getppid()} on here.*--output"
    ):
        RunLock(tmp_path, host="here")
    assert json.loads((tmp_path / "run.lock").read_text())["token"] == "other"


def test_a_lock_of_a_killed_process_of_this_host_is_taken_over_at_once(tmp_path):
    write_lock(tmp_path, host="here", **dead_process())
    with RunLock(tmp_path, host="here", stale_s=1e6) as lock:
        lock.check()
        assert json.loads((tmp_path / "run.lock").read_text())["token"] != "other"
    assert list(tmp_path.iterdir()) == []


def test_a_lock_of_a_killed_process_that_nobody_has_reaped_is_taken_over_too(tmp_path):
    """Who was killed with its parent is a zombie until the system's first process looks after it."""
    killed = subprocess.Popen(["sleep", "1000"])
    identity = identity_of(killed.pid)
    killed.kill()
    os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)
    write_lock(tmp_path, host="here", pid=killed.pid, **identity)
    RunLock(tmp_path, host="here", stale_s=1e6).release()
    killed.wait()


def test_only_the_lock_of_a_process_that_is_certainly_dead_is_cleared(tmp_path):
    here = socket.gethostname()
    run_lock.clear_dead_lock(tmp_path)
    for owner, stays in (
        ({"host": here, **dead_process()}, False),
        ({"host": here, "pid": os.getppid(), **identity_of(os.getppid())}, True),
        ({"host": "elsewhere", **dead_process()}, True),
        ({"host": here, "pid": "soon"}, True),
    ):
        write_lock(tmp_path, **owner)
        run_lock.clear_dead_lock(tmp_path)
        assert (tmp_path / "run.lock").exists() == stays, owner


@pytest.mark.parametrize("whose", [os.getpid, os.getppid])
def test_a_process_id_that_was_given_anew_to_another_process_is_no_owner(tmp_path, whose):
    write_lock(tmp_path, host="here", pid=whose(), **{**identity_of(whose()), "started": "1"})
    RunLock(tmp_path, host="here", stale_s=1e6).release()


OUT_OF_SIGHT = {
    "another container on this machine": {"pid_namespace": "pid:[1]"},
    "another machine of this name": {"boot": "another"},
    "a machine without /proc, or an earlier hpcbal": {},
}


@pytest.mark.parametrize("other", OUT_OF_SIGHT.values(), ids=OUT_OF_SIGHT)
def test_a_living_owner_of_this_host_name_that_cannot_be_seen_is_respected(tmp_path, monkeypatch, other):
    with monkeypatch.context() as patch:
        patch.setattr(run_lock, "identity_of", lambda pid: other and {**identity_of(pid), **other})
        owner = RunLock(tmp_path, host="here", beat_s=0.01)
    with owner:
        with pytest.raises(OutputError, match=r"another run is using .*on here"):
            RunLock(tmp_path, host="here", beat_s=0.01, stale_s=20.0)
        owner.check()


@pytest.mark.parametrize(
    ("owner", "stays"),
    [
        ({"host": socket.gethostname(), **dead_process()}, False),
        ({"host": socket.gethostname(), "pid": os.getppid(), **identity_of(os.getppid())}, True),
        ({"host": "elsewhere"}, True),
    ],
    ids=["dead", "alive", "unseen"],
)
def test_only_the_lock_of_a_dead_owner_is_cleared(tmp_path, owner, stays):
    clear_dead_lock(tmp_path)
    write_lock(tmp_path, **owner)
    clear_dead_lock(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["run.lock"] * stays


def test_a_silent_owner_of_this_host_name_that_cannot_be_seen_is_replaced(tmp_path, capsys):
    write_lock(tmp_path, host="here", pid=os.getppid(), **{**identity_of(os.getppid()), "boot": "another"})
    RunLock(tmp_path, host="here", beat_s=0.01, stale_s=0.05).release()
    assert f"run.lock is held by process {os.getppid()} on here, last sign" in capsys.readouterr().err


def test_a_lock_of_another_host_that_shows_life_is_respected(tmp_path):
    with (
        RunLock(tmp_path, host="elsewhere", beat_s=0.01),
        pytest.raises(OutputError, match="on elsewhere"),
    ):
        RunLock(tmp_path, host="here", beat_s=0.01, stale_s=20.0)


def test_a_lock_of_another_host_without_a_sign_of_life_is_taken_over(tmp_path):
    write_lock(tmp_path)
    with RunLock(tmp_path, host="here", beat_s=0.01, stale_s=0.05) as lock:
        lock.check()


@pytest.mark.parametrize("exists", [True, False])
def test_a_symbolic_link_is_no_lock(tmp_path, exists):
    (tmp_path / "run.lock").symlink_to(tmp_path / "elsewhere")
    if exists:
        (tmp_path / "elsewhere").write_text("theirs")
    with pytest.raises(OutputError, match=r"run\.lock: .*symbolic link.*remove it"):
        RunLock(tmp_path)
    assert (tmp_path / "elsewhere").exists() == exists


@pytest.mark.parametrize("content", [b"", bytes(64), b"\xff", b"[" * 5000, b"[7]", b'{"host": 3, "pid": []}'])
def test_an_unreadable_lock_without_a_sign_of_life_is_taken_over(tmp_path, content):
    (tmp_path / "run.lock").write_bytes(content)
    RunLock(tmp_path, beat_s=0.01, stale_s=0.05).release()


def test_signs_of_life_are_given(tmp_path):
    with RunLock(tmp_path, beat_s=0.005):
        wait_until(lambda: json.loads((tmp_path / "run.lock").read_text())["beat"] > 2)


def test_a_run_whose_lock_was_taken_gets_an_error_and_leaves_the_new_lock_alone(tmp_path):
    lock = RunLock(tmp_path, beat_s=0.005)
    for _ in range(100):  # the owner's sign of life may come in between
        write_lock(tmp_path)
        time.sleep(0.02)
        try:
            lock.check()
        except OutputError as error:
            reported = str(error)
            break
    assert "has taken over" in reported
    lock.release()
    assert json.loads((tmp_path / "run.lock").read_text())["token"] == "other"


def test_a_damaged_lock_is_not_taken_for_that_of_a_successor(tmp_path, monkeypatch):
    seen = []
    parsed = run_lock._parsed
    monkeypatch.setattr(run_lock, "_parsed", lambda content: seen.append(content) or parsed(content))
    lock = RunLock(tmp_path, beat_s=0.005)
    path = tmp_path / "run.lock"
    whole = path.read_bytes()
    damaged = b"\0" * len(whole)
    path.write_bytes(damaged)
    wait_until(lambda: seen.count(damaged) >= 2)
    beat = lock._beat
    lock.check()
    path.write_bytes(whole)
    wait_until(lambda: lock._beat > beat)
    lock.release()
    assert not path.exists()


@pytest.mark.parametrize(("moment", "ending"), [("utc_text", False), ("read_file", True)])
def test_an_owner_that_wakes_late_does_not_overwrite_the_lock_of_its_successor(
    tmp_path, monkeypatch, moment, ending
):
    """The owner has just read its own lock when it is suspended, and the successor takes over."""
    woken = threading.Event()
    original = getattr(run_lock, moment)

    def suspended(*args):
        result = original(*args)
        if not woken.is_set():
            (tmp_path / "run.lock").unlink()
            write_lock(tmp_path)
            woken.set()
        return result

    lock = RunLock(tmp_path, beat_s=100 if ending else 0.005)
    monkeypatch.setattr(run_lock, moment, suspended)
    if not ending:
        assert woken.wait(20)
        wait_until(lambda: is_lost(lock))
    lock.release()
    assert woken.is_set()
    assert json.loads((tmp_path / "run.lock").read_text())["token"] == "other"
    assert [path.name for path in tmp_path.iterdir()] == ["run.lock"]


def test_a_lock_that_somebody_has_removed_is_made_again(tmp_path):
    with RunLock(tmp_path, beat_s=0.005) as lock:
        (tmp_path / "run.lock").unlink()
        wait_until((tmp_path / "run.lock").exists)
        lock.check()
    assert list(tmp_path.iterdir()) == []


def test_of_many_that_start_at_once_one_gets_the_lock(tmp_path):
    code = (
        "import sys, time\n"
        "from hpcbal.errors import OutputError\n"
        "from hpcbal.telemetry.claim.run_lock import RunLock\n"
        "sys.stdin.readline()\n"
        "try:\n"
        "    RunLock(sys.argv[1])\n"
        "    print('held', flush=True)\n"
        "except OutputError:\n"
        "    print('refused', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    write_lock(tmp_path, host=os.uname().nodename, **dead_process())
    command = [sys.executable, "-c", code, str(tmp_path)]
    starts = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    for start in starts:
        start.stdin.write("go\n")
        start.stdin.flush()
    answers = [start.stdout.readline().strip() for start in starts]
    for start in starts:
        start.communicate("end\n", timeout=30)
    assert sorted(answers) == ["held", "refused", "refused", "refused"]


def test_an_unwritable_directory_is_reported(tmp_path):
    with pytest.raises(OutputError, match=r"run\.lock: cannot write"):
        RunLock(tmp_path / "missing")

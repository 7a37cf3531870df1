"""`hpcbal run` waits for its ranks, but not for what they have started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from hpcbal.errors import ExitCode
from hpcbal.processes import shielding
from hpcbal.runtime.handoff import leftovers, start_machine, supervision
from hpcbal.runtime.handoff.clean_output import Outputs
from hpcbal.runtime.handoff.launch_dir import launch_directory
from hpcbal.runtime.handoff.start_file import LAUNCH_DIR, StartFile
from hpcbal.runtime.handoff.supervision import Requests, supervise
from hpcbal.telemetry.resources.processes import started_with

# As mpirun does, it reads a rank's output until nobody can write to it any more.
MPIRUN = """\
import subprocess, sys
rank = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
rank.stdout.read()
sys.exit(rank.wait())
"""
FORKS = "import os, time\nif os.fork() == 0: time.sleep(600)"
WAITS = "import os, time\nif os.fork() == 0: time.sleep(600)\nos.wait()"


@pytest.mark.parametrize("rank", [FORKS, WAITS], ids=["is gone", "waits for its child"])
def test_processes_that_outlive_the_run_are_ended(
    rank: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(leftovers, "GRACE_S", 0.2)
    monkeypatch.setattr(leftovers, "LINGER_S", 1.0)
    with launch_directory() as (directory, _):
        StartFile(directory).add(is_ready=True, exit_code=0)
        process = subprocess.Popen(
            [sys.executable, "-c", MPIRUN, rank], env={**os.environ, LAUNCH_DIR: str(directory)}
        )
        assert supervise(process, directory, Requests()) == 0
        assert not started_with(LAUNCH_DIR, str(directory))
    assert (
        "killed what models or datasets had started and what outlived the run (process ids "
        in capfd.readouterr().err
    )


def test_a_process_that_outlives_mpirun_and_may_print_is_ended(capfd: pytest.CaptureFixture[str]) -> None:
    """Ranks print past mpirun, which does not wait for those that inherit their descriptors."""
    takes = (
        "import sys\nfrom pathlib import Path\nfrom hpcbal.runtime.handoff.clean_output import take_own_way\n"
    )
    prints = (
        "import ctypes\nctypes.CDLL(None).printf(b'in C\\n')\nos.write(1, b'by the rank\\n')\nos._exit(0)"
    )
    rank = f"{takes}take_own_way(Path(sys.argv[1]))\n{FORKS}\n{prints}"
    with launch_directory() as (directory, _), Outputs(directory) as outputs:
        StartFile(directory).add(is_ready=True, exit_code=0)
        process = subprocess.Popen(
            [sys.executable, "-c", rank, str(directory)],
            env={**os.environ, LAUNCH_DIR: str(directory)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[stream.writing_end for stream in outputs.streams],  # which mpirun would hold
        )
        outputs.forward()
        assert supervise(process, directory, Requests(), outputs) == 0
        assert not started_with(LAUNCH_DIR, str(directory))
    printed = capfd.readouterr()
    assert printed.out == "in C\nby the rank\n"
    assert "what outlived the run (process ids " in printed.err


def test_a_rank_that_does_not_leave_after_the_run_does_not_hold_a_stop(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(leftovers, "STOPPED_LINGER_S", 0.5)
    with launch_directory() as (directory, _), Requests() as requests:
        StartFile(directory).add(is_ready=True, exit_code=0)
        process = subprocess.Popen(
            [sys.executable, "-c", MPIRUN, "import time; time.sleep(600)"],
            env={**os.environ, LAUNCH_DIR: str(directory)},
        )
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
        threading.Timer(15.0, process.kill).start()  # so that a failure does not hang
        assert supervise(process, directory, requests) == 0
        assert process.returncode != -signal.SIGKILL
    assert "what outlived the run" in capfd.readouterr().err


def test_the_end_of_the_code_that_has_started_this_is_a_request_to_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(supervision.STARTER, str(os.getppid()))
    requests = Requests()
    requests.note_end_of_starter()
    assert not requests.stop
    monkeypatch.setattr(supervision.os, "getppid", lambda: 1)
    requests.note_end_of_starter()
    requests.note_end_of_starter()
    assert (requests.first_signal, requests.num_signals, requests.take_kill()) == ("SIGHUP", 1, False)
    monkeypatch.delenv(supervision.STARTER)
    requests = Requests()
    requests.note_end_of_starter()
    assert not requests.stop


DEAF = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"


def test_an_mpirun_that_does_not_end_is_killed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(start_machine, "ANSWER_S", 0.3)
    monkeypatch.setattr(start_machine, "FORCE_S", 0.3)
    with launch_directory() as (directory, _), Requests() as requests:
        start = StartFile(directory)
        process = subprocess.Popen(
            [sys.executable, "-c", DEAF], env={**os.environ, LAUNCH_DIR: str(directory)}
        )
        os.kill(os.getpid(), signal.SIGTERM)
        assert supervise(process, directory, requests) == ExitCode.RUN_AGAIN
        assert not start.read().is_orphaned
    *_, forced, last = capfd.readouterr().err.splitlines()
    assert forced == "hpcbal: mpirun did not end within 0 s; killing it with the ranks"
    assert last.startswith("hpcbal: the ranks were killed before the run had written all checkpoints")


SENDS_ITSELF = """
import os, signal, sys, time
for number in (signal.SIGHUP, signal.SIGTERM):
    os.kill(os.getpid(), number)
signal.sigwait([signal.SIGUSR2])
time.sleep(1.5)
sys.exit(9)
"""


def test_what_somebody_sends_to_mpirun_is_one_request_to_stop(capfd: pytest.CaptureFixture[str]) -> None:
    with launch_directory() as (directory, _), Requests() as requests:
        start = StartFile(directory)
        start.add(is_ready=True, is_stopping=True)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
        with shielding():
            process = subprocess.Popen([sys.executable, "-c", SENDS_ITSELF])
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert supervise(process, directory, requests) == ExitCode.RUN_AGAIN
        assert requests.num_signals == 1
        assert start.read().stop_signal == "SIGHUP"
    assert "stopping cleanly" in capfd.readouterr().err


SPEAKS = "import sys, time; time.sleep(0.5); print('mpirun: a rank has ended', file=sys.stderr)"


def test_the_reason_comes_behind_the_lines_of_mpirun(capfd: pytest.CaptureFixture[str]) -> None:
    with launch_directory() as (directory, _):
        StartFile(directory).add(is_ready=True, last_words="rank 3 died", abort_code=1)
        process = subprocess.Popen([sys.executable, "-c", SPEAKS])
        assert supervise(process, directory, Requests()) == 1
    assert capfd.readouterr().err == "mpirun: a rank has ended\nhpcbal: rank 3 died\n"


def test_the_reason_does_not_wait_long_for_mpirun(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supervision, "LAST_WORDS_S", 0.05)
    with launch_directory() as (directory, _):
        StartFile(directory).add(is_ready=True, last_words="rank 3 died", abort_code=1)
        process = subprocess.Popen([sys.executable, "-c", SPEAKS])
        assert supervise(process, directory, Requests()) == 1
    assert capfd.readouterr().err == "hpcbal: rank 3 died\nmpirun: a rank has ended\n"

"""Code of the user cannot choose the exit code of a rank."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpcbal.runtime.handoff.launch_dir import launch_directory
from hpcbal.runtime.handoff.start_file import LAUNCH_DIR, StartFile

PROGRAM = """
import os, sys
from hpcbal.runtime.handoff.rank_process import Activity
from hpcbal.runtime.handoff.rank_process import own_exit_code
activity = Activity()
activity.note("training b")
code = int(sys.argv[1])
with own_exit_code(3, activity):
    if os.fork() == 0:
        os._exit(code)  # a process of the user's own
    assert os.waitstatus_to_exitcode(os.wait()[1]) == code
    if sys.argv[2] == "undecided":
        os._exit(code)
os._exit(code)  # the run has decided
"""


def run(code: int, when: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, str(code), when]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("code", [0, 75])
def test_a_rank_that_ends_itself_exits_with_1_and_says_so(code: int) -> None:
    done = run(code, "undecided")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("hpcbal: rank 3 on ")
    assert " (last seen training b): code of the user" in line
    assert f"ended the process with os._exit({code}); the job ends here. Remove that call" in line


def test_after_the_decision_the_code_is_kept() -> None:
    done = run(75, "decided")
    assert (done.returncode, done.stderr) == (75, "")


HELD = {
    "thread": "threading.Thread(target=time.sleep, args=(600,), name='heart').start()",
    "process": "multiprocessing.Process(target=time.sleep, args=(600,), name='heart').start()",
    "nothing": "",
}


@pytest.mark.parametrize("held", HELD)
def test_what_code_of_the_user_has_started_does_not_hold_a_rank_whose_work_is_done(held: str) -> None:
    program = f"""
import multiprocessing, sys, threading, time
from hpcbal.runtime.handoff import rank_process
rank_process.LEAVE_S = 0.1
{HELD[held]}
rank_process.leave_soon(3, 75)
print("last line")
sys.exit(75)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        code = process.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the process that it has left behind
        out, err = process.communicate()
    assert (code, out) == (75, b"last line\n")
    if held == "nothing":
        assert err == b""
    else:
        assert err.startswith(b"hpcbal: warning: rank 3: 'heart' still ran ")


def test_hpcbal_run_reports_it_and_knows_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    with launch_directory() as (directory, _):
        monkeypatch.setenv(LAUNCH_DIR, str(directory))
        done = run(3, "undecided")
        facts = StartFile(Path(directory)).read()
    assert (done.returncode, done.stderr) == (1, "")
    assert facts.abort_code == 1
    assert facts.last_words is not None
    assert "os._exit(3)" in facts.last_words

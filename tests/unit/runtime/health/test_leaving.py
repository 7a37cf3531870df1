"""Threads and processes of users' code do not hold a rank whose work is done."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import pytest

HELD = {
    "thread": "threading.Thread(target=time.sleep, args=(600,), name='heart').start()",
    "process": "multiprocessing.Process(target=time.sleep, args=(600,), name='heart').start()",
    "nothing": "",
}


@pytest.mark.parametrize("held", HELD)
def test_what_code_of_the_user_has_started_does_not_hold_a_rank_whose_work_is_done(held: str) -> None:
    program = f"""
import multiprocessing, sys, threading, time
from hpcbal.runtime.health import ending
ending.LEAVE_S = 0.1
{HELD[held]}
ending.leave_soon(3, 75)
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

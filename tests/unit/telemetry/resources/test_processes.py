"""Processes are known by the environment that they have got."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from hpcbal.telemetry.resources.processes import pending_signals, started_with


def test_a_process_with_the_variable_counts_until_it_ends(tmp_path: Path) -> None:
    value = str(tmp_path)
    assert not started_with("HPCBAL_LAUNCH_DIR", value)
    environment = {**os.environ, "HPCBAL_LAUNCH_DIR": value}
    command = [sys.executable, "-c", "print(flush=True); input()"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert started_with("HPCBAL_LAUNCH_DIR", value)
        assert not started_with("HPCBAL_LAUNCH_DIR", f"{value}/more")
        assert not started_with("HPCBAL_LAUNCH_DIR", value[:-1])
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and not yet buried
        assert not started_with("HPCBAL_LAUNCH_DIR", value)


def test_signals_that_a_process_blocks_are_seen() -> None:
    code = (
        "import signal as s, time; s.pthread_sigmask(s.SIG_BLOCK, [1, 15]); print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert pending_signals(process.pid) == set()
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert pending_signals(process.pid) == {signal.SIGHUP, signal.SIGTERM}
        process.kill()
    assert pending_signals(process.pid) == set()

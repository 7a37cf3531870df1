"""`hpcbal watch`: follows a run's files, on a terminal alone."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from ledger_lines import a, entry

from hpcbal.cli import main
from hpcbal.cli.watch import Watch
from hpcbal.errors import InputError
from hpcbal.events.line import Line
from hpcbal.report.terminal import RunView
from hpcbal.telemetry.files.json_lines import encode_line
from hpcbal.telemetry.ledger.codec import plain_of, seal
from hpcbal.telemetry.ledger.job_lines import JobDoneLine, JobEpochLine
from hpcbal.telemetry.ledger.run import NodeFacts, RunFinishedLine, RunStartedLine

Capture = pytest.CaptureFixture[str]
STARTED = a(RunStartedLine, kind="jobs", name="birds", nodes=(NodeFacts("n", 2),))


class Growing:
    """A ledger that grows line by line."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "ledger.jsonl"
        self._lines: list[bytes] = []

    def bytes_of(self, line: Line) -> bytes:
        number = len(self._lines)
        self._lines.append(seal(encode_line(plain_of(entry(line, number, 1_790_000_000.0 + number)))))
        return self._lines[-1]

    def add(self, *lines: Line) -> None:
        with self.path.open("ab") as file:
            for line in lines:
                file.write(self.bytes_of(line))


@pytest.fixture
def ledger(tmp_path: Path) -> Growing:
    (tmp_path / "config.yaml").write_text("kind: jobs\n", encoding="utf-8")
    return Growing(tmp_path)


def test_what_is_no_terminal_is_refused(tmp_path: Path, capsys: Capture) -> None:
    assert main(["watch", str(tmp_path)]) == 2
    assert f"hpcbal status {tmp_path}" in capsys.readouterr().err


def test_a_run_is_followed_from_before_its_start_over_half_lines_to_its_end(
    ledger: Growing, tmp_path: Path
) -> None:
    watch = Watch(tmp_path)
    assert "has not begun" in str(watch.look()[0])
    (tmp_path / "config.yaml").rename(tmp_path / "logs")  # ranks have their logs before there is a config
    assert "has not begun" in str(watch.look()[0])
    ledger.add(STARTED)
    epoch = a(JobEpochLine, job="j", epoch=1, metrics={"loss": 1.0})
    placed = ledger.bytes_of(epoch)
    with ledger.path.open("ab") as file:
        file.write(placed[:20])
    before, _ = watch.look()
    assert isinstance(before, RunView)
    assert before.data.state == "interrupted"  # there is no status
    with ledger.path.open("ab") as file:
        file.write(placed[20:])
    ledger.add(a(JobDoneLine, job="j", epochs=1), a(RunFinishedLine, outcome="done"))
    after, _ = watch.look()
    assert isinstance(after, RunView)
    assert after.data.state == "done"
    assert after.data.problem == ""
    ledger.add(STARTED)
    again, _ = watch.look()
    assert isinstance(again, RunView)
    assert len(again.data.start_s) == 2


def test_a_ledger_that_was_replaced_is_read_anew(ledger: Growing, tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    ledger.add(STARTED, a(RunFinishedLine, outcome="done"))
    assert watch.look()[0].data.state == "done"  # type: ignore[union-attr]
    ledger.path.unlink()
    other = Growing(tmp_path)
    other.add(STARTED)
    assert watch.look()[0].data.state == "interrupted"  # type: ignore[union-attr]


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not the output directory of a run"):
        Watch(tmp_path).look()
    with pytest.raises(InputError, match="no such directory"):
        Watch(tmp_path / "none").look()


@pytest.mark.timeout(120)
def test_on_a_terminal_it_follows_its_size_and_quits_with_q(ledger: Growing, tmp_path: Path) -> None:
    ledger.add(STARTED, a(JobEpochLine, job="heron", epoch=1, metrics={"loss": 1.0}))
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "hpcbal", "watch", str(tmp_path)]
    environment = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(command, stdin=child, stdout=child, stderr=child, env=environment)
    os.close(child)
    seen = b""

    def until(wanted: bytes) -> None:
        nonlocal seen
        while wanted not in seen:
            seen += os.read(parent, 65536)

    try:
        until(b"q quits")
        assert b"\x1b[?1049h" in seen  # a screen of its own
        seen = b""
        fcntl.ioctl(parent, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 30, 0, 0))
        process.send_signal(signal.SIGWINCH)
        until(b"birds")
        os.write(parent, b"q")
        assert process.wait(60) == 0
        until(b"\x1b[?1049l")
    finally:
        process.kill()
        os.close(parent)

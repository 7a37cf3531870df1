"""A reader of stderr that has gone changes neither what a program does nor its exit code."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from hpcbal.processes import say

PROGRAM = """
import sys
from hpcbal.processes import say
say("one")
say("two")
sys.exit(75)
"""


def test_lines_are_printed(capfd: pytest.CaptureFixture[str]) -> None:
    say("one")
    assert capfd.readouterr().err == "one\n"


def test_without_a_reader_a_program_continues_to_its_own_exit_code() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as unread:
        assert subprocess.run([sys.executable, "-c", PROGRAM], stderr=unread, timeout=60).returncode == 75


@pytest.mark.parametrize("redirected", ["2>&-", "2>&- >&-"])
def test_text_for_a_closed_stderr_does_not_reach_the_output(redirected: str) -> None:
    command = [sys.executable, "-c", "from hpcbal.processes import say; say('one'); raise SystemExit(75)"]
    script = f'exec "$@" {redirected}'
    done = subprocess.run(["sh", "-c", script, "sh", *command], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (75, b"", b"")


def test_a_line_that_does_not_fit_changes_neither_later_lines_nor_the_exit_code() -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-c", PROGRAM]
        assert subprocess.run(command, stderr=full, timeout=60, check=False).returncode == 75
    program = "import os\nfrom hpcbal.processes import say\n"
    program += "spare = os.dup(2)\nos.dup2(os.open('/dev/full', os.O_WRONLY), 2)\nsay('one')\n"
    program += "os.dup2(spare, 2)\nsay('two')\nsay('drei \u00e4')"
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, timeout=60, check=True)
    assert done.stderr == "two\ndrei \u00e4\n".encode()


def test_a_stream_that_is_closed_or_not_a_file_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    say("one")
    assert stream.getvalue() == "one\n"
    stream.close()
    say("two")

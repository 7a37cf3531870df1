"""What nobody reads any more changes neither what a program does nor its exit code."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys

import pytest

from hpcbal.stderr import say

PROGRAM = """
import sys
from hpcbal.stderr import say
say("one")
say("two")
print("three", file=sys.stderr)
sys.exit(75)
"""


def test_lines_are_said(capfd: pytest.CaptureFixture[str]) -> None:
    say("one")
    assert capfd.readouterr().err == "one\n"


def test_without_a_reader_a_program_goes_on_to_its_own_exit_code() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as unread:
        assert subprocess.run([sys.executable, "-c", PROGRAM], stderr=unread, timeout=60).returncode == 75


@pytest.mark.parametrize("redirected", ["2>&-", "2>&- >&-"])
def test_what_is_said_with_stderr_closed_does_not_land_in_the_output(redirected: str) -> None:
    command = [sys.executable, "-c", "from hpcbal.stderr import say; say('one'); raise SystemExit(75)"]
    script = f'exec "$@" {redirected}'
    done = subprocess.run(["sh", "-c", script, "sh", *command], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (75, b"", b"")


def test_a_line_that_finds_no_room_does_not_take_the_next_ones_along(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        is_full = True

        def write(self, text: str) -> int:
            if self.is_full:
                raise OSError(errno.ENOSPC, "no space left on device")
            return super().write(text)

    stream = Full()
    monkeypatch.setattr(sys, "stderr", stream)
    say("one")
    stream.is_full = False
    say("two")
    stream.close()
    say("three")
    monkeypatch.setattr(sys, "stderr", stream := Full())
    stream.is_full = False
    say("four")
    assert stream.getvalue() == "four\n"

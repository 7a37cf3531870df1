"""What nobody reads any more changes neither what a program does nor its exit code."""

from __future__ import annotations

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

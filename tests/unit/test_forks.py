"""A forked copy of a rank ends when user code returns from it; the rank and other processes go on."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """\
import os
from hpcbal.forks import leave_if_forked, remember_rank
leave_if_forked("nobody")
remember_rank()
leave_if_forked("nobody")
child = os.fork()
leave_if_forked("the model of a")
print("the rank continues", os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_only_the_rank_itself_goes_on_after_a_fork() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert done.stdout == "the rank continues 0\n"
    assert done.stderr.startswith("hpcbal: warning: the model of a has forked; the new process (pid ")
    assert done.stderr.count("\n") == 1

"""A rank that cannot work any more, or whose starter is gone, ends by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcbal.runtime.handoff.start_file import NAME, StartFile

PROGRAM = """\
import dataclasses, os, sys, time
from pathlib import Path
from hpcbal.runtime.handoff.start_file import StartFile
from hpcbal.runtime.handoff.leftovers import TRAINING
from hpcbal.runtime.health.liveness import Liveness
soon = dataclasses.replace(TRAINING, orphaned_s=0.2)
liveness = Liveness(3, StartFile(Path(sys.argv[1]) if sys.argv[1] else None), soon)
liveness.note("training a")
liveness.start()
if sys.argv[2] == "close":
    os.closerange(3, 256)
while True:  # as MPI does without its sockets
    time.sleep(0.1)
"""


def run(directory: Path | str, deed: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, str(directory), deed]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def start(tmp_path: Path) -> StartFile:
    (tmp_path / NAME).touch()
    return StartFile(tmp_path)


def test_closed_descriptors_end_the_rank_and_are_named(start: StartFile, tmp_path: Path) -> None:
    start.add(starter_pid=os.getpid())
    assert run(tmp_path, "close").returncode == 1
    facts = start.read()
    assert facts.abort_code == 1
    assert "(last seen training a): code of the user closed file descriptors" in str(facts.last_words)


def test_under_a_launcher_of_the_site_the_rank_itself_says_so() -> None:
    done = run("", "close")
    assert done.returncode == 1
    assert done.stderr.startswith("hpcbal: rank 3 on ")


def test_a_rank_whose_starter_is_gone_ends(start: StartFile, tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    start.add(starter_pid=gone.pid)
    assert run(tmp_path, "wait").returncode == 1

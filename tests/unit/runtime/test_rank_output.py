"""Output of users in a rank is kept in a log of limited size, and forwarded while it is little."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hpcbal.runtime.rank.output import OutputLog

RANK = """\
import logging, os, sys
from pathlib import Path
from hpcbal.processes import own_stream, say
from hpcbal.runtime.handoff.clean_output import take_own_way
from hpcbal.runtime.rank import output

output.BURST_BYTES, output.RATE_BYTES_PER_S, output.MOST_BYTES = 1000, 0, 5000
take_own_way(None)
with output.kept_output(Path("rank-001.out"), 1):
    {code}
    print("the results", file=own_stream("stdout"), flush=True)
    say("a sentence")
os._exit(0)
"""


def rank(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code of a user in a rank."""
    program = RANK.format(code=code)
    return subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True
    )


def test_little_output_is_shown_and_kept(tmp_path: Path) -> None:
    done = rank(tmp_path, "print('a', 1); sys.stderr.write('b\\n'); sys.stdout.buffer.write(b'c\\n')")
    assert (done.stdout, done.stderr) == ("a 1\nc\nthe results\n", "b\na sentence\n")
    assert (tmp_path / "rank-001.out").read_text() == "a 1\nb\nc\n"


def test_of_much_output_the_end_is_kept_and_the_rest_counted(tmp_path: Path) -> None:
    done = rank(tmp_path, "for k in range(5000): print(f'{k:09}')\n    ")
    lines = done.stdout.splitlines()
    assert lines[:100] == [f"{k:09}" for k in range(100)]
    assert lines[100] == "the results"
    assert lines[-1] == (
        "hpcbal: rank 1 prints too much: 49000 bytes are left out here; the last ones are in rank-001.out"
    )
    kept = (tmp_path / "rank-001.out.1").read_text() + (tmp_path / "rank-001.out").read_text()
    assert 5000 < len(kept) <= 10_000
    assert kept.endswith("000004998\n000004999\n")


@pytest.mark.parametrize(
    "code", ["os.close(1)\n    print('a')", "sys.stdout.close()", "os.mkdir('rank-001.out')\n    print('a')"]
)
def test_a_print_does_not_fail_whatever_the_log_or_the_stream(tmp_path: Path, code: str) -> None:
    assert rank(tmp_path, f"kept = os.dup(1); {code}; os.dup2(kept, 1)").stdout.endswith("the results\n")


def test_nothing_is_made_where_nothing_is_printed(tmp_path: Path) -> None:
    rank(tmp_path, "pass")
    assert os.listdir(tmp_path) == []


def test_a_later_start_appends(tmp_path: Path) -> None:
    for _ in range(3):
        log = OutputLog(tmp_path / "log", most_bytes=10)
        log.write(b"1234\n")
    log.write(b"5678\n")
    assert (tmp_path / "log").read_bytes() == b"1234\n5678\n"
    assert (tmp_path / "log.1").read_bytes() == 2 * b"1234\n"


@pytest.mark.parametrize("code", ["sys.stdout = None", "sys.stderr = object()"])
def test_a_stream_that_the_user_replaced_is_no_error(tmp_path: Path, code: str) -> None:
    done = rank(tmp_path, f"print('a'); {code}")
    assert done.stdout == "a\nthe results\n"
    assert done.stderr == "a sentence\n"


def test_what_a_stream_of_the_user_still_holds_is_not_lost(tmp_path: Path) -> None:
    wrap = "import io; kept = sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-8'); print('a')"
    assert rank(tmp_path, wrap).stdout == "the results\na\n"


def test_several_threads_may_print_while_the_log_is_turned(tmp_path: Path) -> None:
    log = OutputLog(tmp_path / "log", most_bytes=200)

    def print_much(name: int) -> None:
        for number in range(200):
            log.write(b"%d %03d\n" % (name, number))

    threads = [threading.Thread(target=print_much, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = [line for path in tmp_path.iterdir() for line in path.read_bytes().splitlines()]
    assert lines
    assert all(re.fullmatch(rb"\d \d{3}", line) for line in lines)

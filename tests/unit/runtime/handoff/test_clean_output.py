"""The output of mpirun reaches the terminal whole, but no control character does."""

from __future__ import annotations

import os
import re
import select
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.runtime.handoff import clean_output
from hpcbal.runtime.handoff.clean_output import (
    Allowance,
    AppendedFile,
    Cleaner,
    CleanOutput,
    NewLines,
    discard_output,
)

PIECES = [
    b"a",
    "\u00e9\u011b".encode(),
    b"\x1b",
    b"[",
    b"31",
    b"m",
    b"2J",
    b"\r",
    b"\n",
    b"\t",
    b"\0",
    b"\xc2",
    b"\x9b",
]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (b"\x1b[2J\x1b[31mHELLO\x1b[0m\0\n", b"\\x1b[2J\x1b[31mHELLO\x1b[0m\n"),
        (b"10%\r20%\r\n", b"10%\n20%\n"),
        ("\u00e9\u011b \u009b2J\tx\x07".encode(), "\u00e9\u011b \\x9b2J\tx\\x07".encode()),
        (b"\x1b]0;title\x07", b"\\x1b]0;title\\x07"),
        (b"\x1b[" + 40 * b"1", b"\\x1b[" + 40 * b"1"),
    ],
)
def test_control_characters_become_visible(given: bytes, shown: bytes) -> None:
    cleaner = Cleaner(keeps_colors=True)
    assert cleaner.clean(given) + cleaner.finish() == shown


def test_colors_are_for_terminals() -> None:
    assert Cleaner(keeps_colors=False).clean(b"\x1b[31mred\n") == b"\\x1b[31mred\n"


@given(st.lists(st.sampled_from(PIECES)), st.integers(1, 5))
def test_it_does_not_matter_how_the_bytes_arrive(pieces: list[bytes], step: int) -> None:
    text = b"".join(pieces)
    at_once, in_chunks = (Cleaner(keeps_colors=True) for _ in range(2))
    whole = at_once.clean(text) + at_once.finish()
    chunks = [in_chunks.clean(text[k : k + step]) for k in range(0, len(text), step)]
    assert b"".join(chunks) + in_chunks.finish() == whole
    assert b"\0" not in whole
    assert b"\r" not in whole


def test_everything_arrives_though_the_reader_is_slow(tmp_path: Path) -> None:
    source, target = os.pipe()
    size = 3 << 20
    output = CleanOutput(target, tmp_path / "own")
    writer = os.dup(output.writing_end)
    output.forward()

    def write() -> None:
        rest = size * b"x"
        while rest:
            rest = rest[os.write(writer, rest) :]
        os.close(writer)

    def read() -> None:
        time.sleep(0.3)
        while sum(seen) < size:
            seen.append(len(os.read(source, 1 << 16)))

    seen: list[int] = []
    threads = [threading.Thread(target=each) for each in (write, read)]
    for thread in threads:
        thread.start()
    threads[0].join(30.0)
    output.drain(0.05)
    threads[1].join(30.0)
    assert sum(seen) == size
    os.close(target)
    os.close(source)


def test_mpirun_is_not_blocked_if_nobody_reads(tmp_path: Path) -> None:
    source, target = os.pipe()
    os.close(source)
    output = CleanOutput(target, tmp_path / "own")
    writer = os.dup(output.writing_end)
    output.forward()
    for _ in range(40):
        os.write(writer, (1 << 16) * b"x")
    os.close(writer)
    output.drain(30.0)
    os.close(target)


def test_ranks_that_print_do_not_wait_for_a_reader_that_is_gone(tmp_path: Path) -> None:
    """mpirun still has both ends of the pipe of a `hpcbal run` that was killed."""
    of_mpirun = [CleanOutput(1, tmp_path / name) for name in clean_output.NAMES]
    blocked = threading.Thread(target=os.write, args=(of_mpirun[0].writing_end, b"x" * (4 << 20)))
    blocked.start()
    blocked.join(0.2)
    assert blocked.is_alive()
    discard_output(tmp_path)
    blocked.join(30.0)
    assert not blocked.is_alive()
    for output in of_mpirun:
        output.close()


def test_output_is_forwarded_where_pipes_cannot_have_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "mkfifo", refuse)
    source, target = os.pipe()
    output = CleanOutput(target, tmp_path / "own")
    writer = os.dup(output.writing_end)
    output.forward()
    os.write(writer, b"a\n")
    os.close(writer)
    output.drain(30.0)
    assert os.read(source, 10) == b"a\n"
    os.close(source)
    os.close(target)


def test_a_flood_passes_at_a_rate_and_what_was_dropped_is_counted() -> None:
    allowance = Allowance("%d dropped", burst_bytes=10, rate_bytes_per_s=2, last_bytes=3)
    assert allowance.take(b"1234\n", 0.0) == b"1234\n"
    times_s = (0.0, 0.0, 0.0, 2.0, 4.5, 6.0, 6.0)
    passed = [allowance.take(b"abcd\n", now_s) for now_s in times_s]
    assert passed == [b"abcd\n", b"", b"", b"", b"", b"\n17 dropped\ncd\nabcd\n", b"abcd\n"]
    assert allowance.take(b"1", 100.0, has_room=False) == b""
    assert allowance.finish() == b"1"
    assert allowance.take(b"123456", 100.0, has_room=False) == b""
    assert allowance.finish() == b"\n3 dropped\n456"
    assert allowance.finish() == b""


def test_only_what_passes_is_cleaned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cleaning would make reading slower than ranks can print."""
    cleaned: list[int] = []
    clean = Cleaner.clean
    monkeypatch.setattr(Cleaner, "clean", lambda self, text: cleaned.append(len(text)) or clean(self, text))
    target = os.open(os.devnull, os.O_WRONLY)
    output = CleanOutput(target, tmp_path / "own")
    writer = os.dup(output.writing_end)
    output.forward()
    for _ in range(512):
        os.write(writer, (1 << 16) * b"x")
    os.close(writer)
    output.drain(30.0)
    os.close(target)
    assert sum(cleaned) < 256 << 16


def test_what_hpcbal_prints_passes_whole_in_a_flood(tmp_path: Path) -> None:
    """Ranks print lines of all kinds, and libraries more than is forwarded, before, between and after."""
    own = AppendedFile(tmp_path / "own", otherwise=-1)
    source, target = os.pipe()
    output = CleanOutput(target, tmp_path / "own")
    writer = os.dup(output.writing_end)
    output.forward()

    def flood() -> None:
        for number in range(300):
            os.write(writer, b"x" * 65_000 + b"\nunfinished")
            if number % 100 == 50:
                own.write(b"name   state\n\nfiles: r/ (%d)\n" % number)
        os.close(writer)
        output.drain(30.0)
        os.close(target)

    thread = threading.Thread(target=flood)
    thread.start()
    forwarded = b""
    while chunk := os.read(source, 1 << 16):
        forwarded += chunk
    thread.join()
    os.close(source)
    for number in (50, 150, 250):
        assert b"\nname   state\n\nfiles: r/ (%d)\n" % number in forwarded
    assert re.search(
        rb"\nhpcbal: the ranks print too much: \d+ bytes of their output were dropped", forwarded
    )
    assert len(forwarded) < 300 * 65_000


def test_what_hpcbal_prints_is_shown_by_the_rank_if_nobody_takes_it(tmp_path: Path) -> None:
    source, target = os.pipe()
    assert AppendedFile(tmp_path / "gone", otherwise=target).write(b"a\n") == 2
    assert os.read(source, 10) == b"a\n"
    os.close(source)
    os.close(target)


def test_a_reader_that_never_reads_does_not_block_mpirun(tmp_path: Path) -> None:
    source, target = os.pipe()
    output = CleanOutput(target, tmp_path / "own")
    writer = os.dup(output.writing_end)
    output.forward()
    for _ in range(320):  # 20 MiB: more than is kept for a slow reader
        os.write(writer, (1 << 16) * b"x")
    os.close(writer)
    os.close(source)
    output.drain(30.0)
    os.close(target)


def test_lines_of_hpcbal_are_not_torn(tmp_path: Path) -> None:
    lines = NewLines(tmp_path / "own")
    own = AppendedFile(tmp_path / "own", otherwise=-1)
    own.write(b"a   done")
    assert lines.read(is_last=False) == b""
    own.write(b"\nb   ")
    assert lines.read(is_last=False) == b"a   done\n"
    assert lines.read(is_last=True) == b"b   "
    lines.close()


def test_what_hpcbal_prints_waits_on_disk_for_a_slow_reader(tmp_path: Path) -> None:
    """Not in the memory of `hpcbal run`."""
    own = AppendedFile(tmp_path / "own", otherwise=-1)
    source, target = os.pipe()
    output = CleanOutput(target, tmp_path / "own")
    writer = os.dup(output.writing_end)
    for _ in range(48):
        own.write(b"x" * ((1 << 20) - 1) + b"\n")
    output.forward()
    deadline_s = time.monotonic() + 30.0
    while output._num_waiting < clean_output._MOST_WAITING_BYTES:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    time.sleep(0.5)
    assert output._num_waiting <= clean_output._MOST_WAITING_BYTES + (1 << 20)
    os.close(writer)
    os.close(source)  # nobody reads it any more: what is left is dropped
    output.drain(30.0)
    os.close(target)


def test_nothing_is_lost_where_another_program_has_made_the_target_non_blocking(tmp_path: Path) -> None:
    source, target = os.pipe()
    os.set_blocking(target, False)
    output = CleanOutput(target, tmp_path / "own")
    AppendedFile(tmp_path / "own", otherwise=-1).write(b"x" * (1 << 20) + b"\n")
    writer = os.dup(output.writing_end)
    output.forward()
    os.close(writer)
    num_bytes = 0
    while num_bytes < (1 << 20) + 1 and select.select([source], [], [], 10.0)[0]:
        time.sleep(0.001)
        num_bytes += len(os.read(source, 1 << 16))
    output.drain(30.0)
    os.close(source)
    os.close(target)
    assert num_bytes == (1 << 20) + 1

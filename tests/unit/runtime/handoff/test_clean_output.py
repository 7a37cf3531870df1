"""The output of mpirun reaches the terminal whole, but no control character does."""

from __future__ import annotations

import os
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.runtime.handoff.clean_output import Allowance, Cleaner, CleanOutput

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


def test_everything_arrives_though_the_reader_is_slow() -> None:
    source, target = os.pipe()
    size = 3 << 20
    with CleanOutput(target) as output:
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


def test_mpirun_is_not_blocked_if_nobody_reads() -> None:
    source, target = os.pipe()
    os.close(source)
    with CleanOutput(target) as output:
        writer = os.dup(output.writing_end)
        output.forward()
    for _ in range(40):
        os.write(writer, (1 << 16) * b"x")
    os.close(writer)
    output.drain(30.0)
    os.close(target)


def test_a_flood_passes_at_a_rate_and_what_was_dropped_is_counted() -> None:
    allowance = Allowance(burst_bytes=10, rate_bytes_per_s=2)
    assert allowance.take(b"1234\n", 0.0) == b"1234\n"
    passed = [allowance.take(b"1234\n", now_s) for now_s in (0.0, 0.0, 0.0, 1.0, 2.5)]
    assert passed[:4] == [b"1234\n", b"1234\n", b"", b""]
    assert (
        passed[4] == b"\nhpcbal: the ranks print too much: 10 bytes of their output were dropped here\n1234\n"
    )
    assert allowance.take(b"1", 100.0, has_room=False) == b""
    assert b" 1 bytes " in allowance.finish()
    assert allowance.finish() == b""


def test_a_flood_does_not_drown_what_is_unlike_it() -> None:
    allowance = Allowance(burst_bytes=0, rate_bytes_per_s=0)
    flood = 1000 * b"retrying\n"
    assert allowance.take(flood, 0.0) == b"retrying\n"
    assert allowance.take(flood, 0.0) == b""
    assert allowance.take(flood + b"[0:00:27] finished\n" + flood, 0.0) == b"[0:00:27] finished\n"
    assert allowance.take(b"".join(b"%d\n" % i for i in range(3000)), 0.0) == b""


@pytest.mark.parametrize("num_pieces", [1, 7])
def test_a_flood_of_ever_different_lines_does_not_drown_those_of_hpcbal(num_pieces: int) -> None:
    own = b"[0:00:27] a converged after epoch 3\nhpcbal: stopping cleanly\n"
    text = b"".join(b"retry %d\n" % number for number in range(9000)) + b"..."
    text += own + b"".join(b"retry %d\n" % number for number in range(9000, 18000))
    allowance = Allowance(burst_bytes=0, rate_bytes_per_s=0)
    size = len(text) // num_pieces + 1
    pieces = [allowance.take(text[at : at + size], 0.0) for at in range(0, len(text), size)]
    assert b"".join(pieces) == own
    assert b"%d bytes" % (len(text) - len(own)) in allowance.finish()


def test_a_reader_that_never_reads_does_not_block_mpirun() -> None:
    source, target = os.pipe()
    with CleanOutput(target) as output:
        writer = os.dup(output.writing_end)
        output.forward()
    for _ in range(320):  # 20 MiB: more than is kept for a slow reader
        os.write(writer, (1 << 16) * b"x")
    os.close(writer)
    os.close(source)
    output.drain(30.0)
    os.close(target)

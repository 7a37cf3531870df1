"""The ledger's file: only appended to, torn ends tolerated, counted over all starts."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from ledger_lines import a

from hpcbal.errors import LedgerError, OutputError
from hpcbal.telemetry import Ledger, read_ledger
from hpcbal.telemetry.ledger import (
    BadSampleLine,
    BalanceFacts,
    DnnDoneLine,
    EpochDoneLine,
    EpochFacts,
    PassStartedLine,
    RateMeasuredLine,
    RunFinishedLine,
    lines_of,
)

DONE = DnnDoneLine("a", "3 of at most 3 epochs")


def test_lines_come_back_in_order_with_their_place(tmp_path: Path) -> None:
    path, finished = tmp_path / "ledger.jsonl", a(RunFinishedLine, exit_code=3)
    with Ledger(path) as ledger:
        assert ledger.append(DONE) == 0
        assert ledger.append(finished, durable=True) == 1
    first, second = read_ledger(path)
    assert [(entry.seq, entry.line) for entry in (first, second)] == [(0, DONE), (1, finished)]
    assert first.time.endswith("Z")
    assert first.unix_s <= second.unix_s
    assert lines_of([first, second], DnnDoneLine) == [DONE]


def test_a_line_is_in_the_file_at_once(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.append(DONE)
        assert len(read_ledger(tmp_path / "ledger.jsonl")) == 1


def test_the_count_continues_over_starts(tmp_path: Path) -> None:
    for expected in (0, 1, 2):
        with Ledger(tmp_path / "ledger.jsonl") as ledger:
            assert ledger.append(DONE) == expected


@pytest.mark.parametrize("num_lost", [1, 2, 10, 40])
def test_a_torn_last_line_is_left_out_and_a_later_start_removes_it(
    tmp_path: Path, num_lost: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        for _ in range(3):
            ledger.append(DONE)
    path.write_bytes(path.read_bytes()[:-num_lost])
    whole = 3 if num_lost == 1 else 2  # without its line end a line is still whole
    assert len(read_ledger(path)) == whole
    with Ledger(path) as ledger:
        assert ledger.append(DONE) == whole
    assert [entry.seq for entry in read_ledger(path)] == list(range(whole + 1))
    assert caplog.text.count("incomplete line") == (num_lost > 1)
    assert len(path.read_text().splitlines()) == whole + 1


def test_a_ledger_cut_at_any_byte_loses_only_what_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        for number in range(3):
            ledger.append(DnnDoneLine("a", "}{" * number))
    data = path.read_bytes()
    ends = [index for index, byte in enumerate(data) if byte == ord("\n")]
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        num_whole = sum(end <= cut for end in ends)
        assert len(read_ledger(path)) == num_whole
        with Ledger(path) as ledger:
            assert ledger.append(DONE) == num_whole


def test_numbers_of_numpy_become_plain_ones(tmp_path: Path) -> None:
    path, shares = tmp_path / "ledger.jsonl", np.arange(2)
    facts = a(EpochFacts, wait_s=np.float64(0.5), balance=BalanceFacts(tuple(shares)))
    with Ledger(path) as ledger:
        ledger.append(a(EpochDoneLine, facts=facts, metrics={"loss": None}))
    (entry,) = read_ledger(path)
    assert isinstance(entry.line, EpochDoneLine)
    assert entry.line.facts == a(EpochFacts, wait_s=0.5, balance=BalanceFacts((0, 1)))
    assert entry.line.metrics == {"loss": None}
    json.loads(path.read_text(), parse_constant=lambda word: pytest.fail(f"not JSON: {word}"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (a(RateMeasuredLine, samples_per_s=math.inf), "samples_per_s is null, allowed: a number"),
        (a(PassStartedLine, pass_index="3"), 'pass_index is "3", allowed: a whole number'),
    ],
)
def test_what_could_not_be_read_again_is_not_written(tmp_path: Path, line: Any, message: str) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        with pytest.raises(ValueError, match=message):
            ledger.append(line)
        assert ledger.append(DONE) == 0
    assert len(read_ledger(path)) == 1


def test_a_name_that_is_no_valid_text_does_not_make_a_ledger_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        ledger.append(BadSampleLine(3, b"ros\xe9.png".decode(errors="surrogateescape"), "truncated"))
    (entry,) = read_ledger(path)
    assert entry.line == BadSampleLine(3, "ros?.png", "truncated")


def test_a_file_that_cannot_be_opened_is_reported(tmp_path: Path) -> None:
    (tmp_path / "ledger.jsonl").mkdir()
    with pytest.raises(OutputError, match=r"ledger\.jsonl: cannot open the ledger: Is a directory"):
        Ledger(tmp_path / "ledger.jsonl")


def test_a_torn_line_of_any_length_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        ledger.append(DONE)
        ledger.append(DnnDoneLine("a", "x" * 200_000))
    path.write_bytes(path.read_bytes()[:-9])
    with Ledger(path):
        pass
    assert len(path.read_text().splitlines()) == 1
    assert [entry.line for entry in read_ledger(path)] == [DONE]


def test_a_failed_append_leaves_nothing_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hpcbal.telemetry.ledger import file as module

    def write_a_part(file: BinaryIO, data: bytes) -> None:
        file.write(data[:20])
        raise OSError(28, "No space left on device")

    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        ledger.append(DnnDoneLine("one", ""))
        monkeypatch.setattr(module, "write_all", write_a_part)
        with pytest.raises(OutputError, match="No space left on device"):
            ledger.append(DnnDoneLine("two", ""))
        monkeypatch.undo()
        assert path.read_bytes().endswith(b"\n")
        ledger.append(DnnDoneLine("three", ""))
    assert [(entry.seq, entry.line) for entry in read_ledger(path)] == [
        (0, DnnDoneLine("one", "")),
        (1, DnnDoneLine("three", "")),
    ]


def test_no_file_is_an_empty_ledger(tmp_path: Path) -> None:
    assert read_ledger(tmp_path / "ledger.jsonl") == []


def test_a_damaged_line_is_named_by_file_and_number(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        ledger.append(DONE)
    path.write_text(path.read_text() + "\n{}\n")
    with pytest.raises(LedgerError) as refused:
        read_ledger(path)
    assert str(refused.value) == (
        f"{path}:3: schema is absent, allowed: 1 or 2; the file is damaged or from another version of "
        "hpcbal: restore it, use the version that wrote it, or choose another output directory"
    )
    assert refused.value.exit_code == 2
    with pytest.raises(LedgerError):
        Ledger(path)

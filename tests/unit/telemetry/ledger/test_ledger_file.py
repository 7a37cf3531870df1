"""The ledger's file: only appended to, torn ends tolerated, counted over all starts."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from ledger_lines import a, plan_of

from hpcbal.errors import LedgerError, OutputError
from hpcbal.events.ensemble import CheckpointWritten, EpochDone, NextPass, RateMeasured, StartRound
from hpcbal.events.history import BalanceFacts, EpochFacts, Position
from hpcbal.events.line import Line
from hpcbal.events.members import StopRule
from hpcbal.telemetry.ledger.dnn_lines import BadSampleLine, DnnDoneLine
from hpcbal.telemetry.ledger.file import Ledger, lines_of, read_ledger, scan_ledger
from hpcbal.telemetry.ledger.job_lines import JobSavedLine
from hpcbal.telemetry.ledger.registry import LINE_BY_EVENT
from hpcbal.telemetry.ledger.run import RunFinishedLine

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


def test_lines_that_get_further_than_those_before_are_progress(tmp_path: Path) -> None:
    """Also if a DNN goes back to an earlier epoch because its checkpoint was damaged."""
    reached: list[int] = []
    facts = {"position": Position(1), "seconds": 0.1, "held_s": 0.1}
    for start, epochs in enumerate(([1, 1, 2], [2, 2], [1, 2])):
        note = functools.partial(reached.append, start)
        with Ledger(tmp_path / "ledger.jsonl", on_progress=note) as ledger:
            for epoch in epochs:
                ledger.append(CheckpointWritten("a", epoch, **facts))
            ledger.append(CheckpointWritten("b", 0, **facts))
            ledger.append(RateMeasured("a", 1, 100.0 + start))
            ledger.append(JobSavedLine("job", 0, 5, 0.1))
            ledger.append(DONE)
    assert reached == [0] * 5 + [2] * 2


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
        ledger.append(a(EpochDone, facts=facts, metrics={"loss": math.nan}))
    (entry,) = read_ledger(path)
    assert isinstance(entry.line, EpochDone)
    assert entry.line.facts == a(EpochFacts, wait_s=0.5, balance=BalanceFacts((0, 1)))
    assert math.isnan(entry.line.metrics["loss"])
    json.loads(path.read_text(), parse_constant=lambda word: pytest.fail(f"not JSON: {word}"))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", LINE_BY_EVENT.values())
def test_numbers_that_are_not_finite_are_null_and_read_as_nan(
    tmp_path: Path, kind: type[Line], value: float
) -> None:
    """A measurement that failed does not end a run, wherever in a line it is."""

    def with_value(facts: Any) -> Any:
        if isinstance(facts, StopRule):  # a setting, not a measurement
            return facts
        if isinstance(facts, float):
            return value
        if isinstance(facts, Mapping):
            return {name: with_value(each) for name, each in facts.items()}
        if isinstance(facts, tuple):
            return tuple(map(with_value, facts))
        if dataclasses.is_dataclass(facts) and not isinstance(facts, type):
            inside = {field.name: getattr(facts, field.name) for field in dataclasses.fields(facts)}
            return type(facts)(**{name: with_value(each) for name, each in inside.items()})
        return facts

    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        ledger.append(with_value(a(kind)))
    (entry,) = read_ledger(path)
    optional = {"balancing_would_save", "metrics", "predicted_s", "actual_s"}
    line, written = entry.line, with_value(a(kind))
    for field in dataclasses.fields(line):
        if field.name not in optional:
            expected = repr(getattr(written, field.name)).replace("-inf", "nan").replace("inf", "nan")
            assert repr(getattr(line, field.name)) == expected
    json.loads(path.read_text(), parse_constant=lambda word: pytest.fail(f"not JSON: {word}"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (a(RateMeasured, samples_per_s="fast"), 'samples_per_s is "fast", allowed: a number'),
        (a(NextPass, pass_index="3"), 'pass_index is "3", allowed: a whole number'),
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
    with pytest.raises(OutputError, match=r"ledger\.jsonl: cannot read the ledger: Is a directory"):
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


def written(path: Path, num_lines: int = 4) -> list[bytes]:
    """The lines of a new ledger."""
    with Ledger(path) as ledger:
        for number in range(num_lines):
            ledger.append(DnnDoneLine(f"dnn-{number}", f"{number} of at most 9 epochs"))
    return path.read_bytes().splitlines(keepends=True)


def without_checksum(line: bytes) -> bytes:
    """The line as earlier versions wrote it."""
    return line[: line.index(b', "crc32"')] + b"}\n"


def test_a_flipped_bit_anywhere_is_noticed_and_its_line_skipped(tmp_path: Path) -> None:
    """A digit that becomes another digit, or a letter of a name, leaves a line that looks whole."""
    path = tmp_path / "ledger.jsonl"
    lines = written(path)
    whole = scan_ledger(path).entries
    data, start = b"".join(lines), len(lines[0])
    for place in range(start, start + len(lines[1]) - 1):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            scan = scan_ledger(path)
            assert scan.entries == [whole[0], *whole[2:]], (place, bit)
            assert scan.problem is not None
            assert f"{path} is damaged: line 2 " in scan.problem


DAMAGES: dict[str, tuple[Callable[[list[bytes]], list[bytes]], list[int], str]] = {
    "a line is lost": (lambda ls: [*ls[:1], *ls[2:]], [0, 2, 3], "lines are missing before line 2;"),
    "the first is lost": (lambda ls: ls[1:], [1, 2, 3], "lines are missing before line 1;"),
    "a line comes twice": (lambda ls: [*ls[:2], *ls[1:]], [0, 1, 2, 3], "line 3 has the number 1 again;"),
    "garbage": (lambda ls: [*ls[:2], b"\xff\x00\n", *ls[2:]], [0, 1, 2, 3], "line 3 is not a whole line "),
    "zeros": (lambda ls: [*ls[:1], bytes(4096), b"\n", *ls[2:]], [0, 2, 3], "line 2 is not a whole line "),
    "zeros over two lines": (
        lambda ls: [*ls[:1], bytes(4096), b"\n", *ls[3:]],
        [0, 3],
        "line 2 is not a whole line (an interrupted write, or a damaged disk) (and 1 more problem);",
    ),
    "an empty object": (
        lambda ls: [*ls, b"{}\n"],
        [0, 1, 2, 3],
        "line 5 is wrong (schema is absent, allowed: 2",
    ),
    "deep nesting": (lambda ls: [*ls, b"[" * 5000 + b"\n"], [0, 1, 2, 3], "line 5 is not a whole line "),
    "an edited line": (
        lambda ls: [ls[0].replace(b"dnn-0", b"dnn-9"), *ls[1:]],
        [1, 2, 3],
        "line 1 does not fit its checksum (a damaged disk, or an edited line: remove its crc32);",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_skipped_and_reported_once(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "ledger.jsonl"
    damage, left, message = DAMAGES[name]
    path.write_bytes(b"".join(damage(written(path))))
    assert [entry.seq for entry in read_ledger(path)] == left
    assert [record.getMessage() for record in caplog.records] == [scan_ledger(path).problem]
    assert f"{path} is damaged: {message}" in caplog.text
    with Ledger(path) as ledger:
        assert ledger.append(DONE) == max(left) + 1
    assert [entry.seq for entry in scan_ledger(path).entries] == [*left, max(left) + 1]


def test_zeros_at_the_end_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    lines = written(path)
    path.write_bytes(b"".join(lines) + bytes(4096))
    assert scan_ledger(path).problem is None, "somebody may be writing there"
    with Ledger(path):
        pass
    assert path.read_bytes() == b"".join(lines)


def test_an_epoch_of_a_dnn_that_no_line_trains_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        ledger.append(StartRound(plan_of({"a": (0,)})))
        for name in ("a", "b", "b"):
            ledger.append(a(EpochDone, dnn_id=name))
    problem = scan_ledger(path).problem
    assert problem is not None
    assert "line 3 is an epoch of b, which no earlier line trains; " in problem


def test_a_line_without_a_checksum_is_read(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    (line,) = written(path, 1)
    path.write_bytes(without_checksum(line))
    scan = scan_ledger(path)
    assert (len(scan.entries), scan.problem) == (1, None)


def test_a_file_that_was_removed_or_replaced_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        ledger.append(DONE)
        ledger.check()
        kept = path.rename(tmp_path / "kept")
        with pytest.raises(OutputError, match=r"ledger\.jsonl: was removed or replaced during the run"):
            ledger.check()
        path.write_bytes(kept.read_bytes())
        with pytest.raises(OutputError, match="run the same command again"):
            ledger.check()


def test_a_wrong_line_is_named_by_file_and_number(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    (line,) = written(path, 1)
    path.write_bytes(without_checksum(line) + b"\n{}\n")
    with pytest.raises(LedgerError) as refused:
        read_ledger(path)
    assert str(refused.value) == (
        f"{path}:3: schema is absent, allowed: 2; the file is damaged or from another version of "
        "hpcbal: restore it, use the version that wrote it, choose another output directory, or remove this "
        "line to go on without what it recorded"
    )
    assert refused.value.exit_code == 2
    with pytest.raises(LedgerError):
        Ledger(path)

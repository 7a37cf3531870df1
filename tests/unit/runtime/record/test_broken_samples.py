"""The console shows each fault of samples, not each sample that has it."""

from __future__ import annotations

import pytest

from hpcbal.runtime.record.accounts import (
    MAX_LIKE,
    MAX_NAMED,
    BrokenSampleLines,
    fault_of,
    summary_of_broken,
)


@pytest.mark.parametrize(
    "reason",
    ["cannot read cat/{}.png", "{} NaN of 40 values", "no image in <BytesIO object at 0x7f{}>", "label {}.5"],
)
def test_the_same_fault_is_recognised(reason: str) -> None:
    assert fault_of("cat/3.png", reason.format(3)) == fault_of("cat/17.png", reason.format(17))


def test_other_faults_differ() -> None:
    assert fault_of("a", "1 NaN of 40 values") != fault_of("a", "1 infinite of 40 values")
    assert fault_of("", "empty") == "empty"


def test_a_fault_is_shown_a_few_times_and_does_not_hide_another() -> None:
    lines = BrokenSampleLines()
    shown = [lines.add(f"{i}.png", f"label {i}.5") for i in range(40)]
    assert shown[:MAX_LIKE] == [f"broken sample skipped: {i}.png: label {i}.5" for i in range(MAX_LIKE)]
    assert shown[MAX_LIKE] == "more samples are broken like 5.png: label 5.5; ledger.jsonl names them all"
    assert set(shown[MAX_LIKE + 1 :]) == {None}
    assert lines.add("cat.png", "truncated") == "broken sample skipped: cat.png: truncated"


def test_many_different_faults_are_not_all_shown() -> None:
    lines = BrokenSampleLines()
    shown = [lines.add("row", "x" * i) for i in range(3 * MAX_NAMED)]
    assert None not in shown[:MAX_NAMED]
    assert shown[MAX_NAMED] == "more samples are broken; ledger.jsonl names them all"
    assert set(shown[MAX_NAMED + 1 :]) == {None}


def test_the_summary_shows_the_most_frequent_faults() -> None:
    samples = [
        ("a", "one"),
        *[(f"b{i}", "two") for i in range(3)],
        ("c", "three"),
        ("d", "four"),
        ("e", "five"),
    ]
    assert summary_of_broken(samples) == "3 like b0: two; a: one; c: three; 2 others"

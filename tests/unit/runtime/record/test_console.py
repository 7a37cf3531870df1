"""Users see what concerns them, each fact once and on its own line."""

from __future__ import annotations

import errno
import io
import logging
import re
import sys

import pytest

from hpcbal.config import EnsembleConfig
from hpcbal.errors import InputError
from hpcbal.events.ensemble import DnnFailed, GroupPlan, RoundPlan, StartGroup, StartProfiling, StartRound
from hpcbal.events.history import Position
from hpcbal.runtime.record.console import Console
from hpcbal.telemetry.ledger.dnn_lines import BadSampleLine

TRACEBACK = """\
Traceback (most recent call last):
  File "toys.py", line 7, in toy
    raise RuntimeError("no such layer")
RuntimeError: no such layer
it has two only
"""


class Deaf(io.StringIO):
    """A stream whose reader is gone."""

    def write(self, text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")


def console_of(num_train: int = 100) -> Console:
    """Of a run with two DNNs of 24 samples a step, whose slots take 6 each."""
    dnn = {
        "model": "m:f",
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "batch_size": 24,
        "stop": {"max_epochs": 1},
    }
    balance = {"policy": "fitted", "max_samples_per_slot": 6}
    dnns = [{"name": name, **dnn} for name in "ab"]
    return Console(
        EnsembleConfig.model_validate({"name": "run", "dnns": dnns, "balance": balance}), 4, num_train
    )


def groups_of(**num_slots: int) -> tuple[GroupPlan, ...]:
    return tuple(GroupPlan(name, tuple(range(count))) for name, count in num_slots.items())


def plan_of(**num_slots: int) -> RoundPlan:
    start = dict.fromkeys(num_slots, Position(0))
    return RoundPlan(0, groups_of(**num_slots), 0, start, dict.fromkeys(num_slots, 0), 1, {})


def reported(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Lines since the last call, without their times."""
    return [re.sub(r"^\[[0-9:]+\] ", "", line) for line in capsys.readouterr().out.splitlines()]


def limits_reported(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in reported(capsys) if "max_samples_per_slot" in line]


@pytest.mark.parametrize(
    ("detail", "line", "where"),
    [
        (f"toys.py:7: RuntimeError: of two\n{TRACEBACK}", "toys.py:7: RuntimeError: of two", "rank 2: logs/"),
        ("DNN a: no such layer", "DNN a: no such layer", "rank 2)"),
    ],
    ids=["error in a user's code", "our own error"],
)
def test_the_key_line_of_a_failure_is_shown_and_where_its_traceback_is(
    capsys: pytest.CaptureFixture[str], detail: str, line: str, where: str
) -> None:
    console_of().handle(DnnFailed("a", "error", detail, rank=2))
    (shown,) = reported(capsys)
    assert shown.startswith(f"a FAILED: error: {line} ({where}")


def test_each_dnn_over_the_limit_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    console = console_of()
    limit = "warning: balance.max_samples_per_slot: got 6, less than an even share, which is always allowed: "
    console.handle(StartRound(plan_of(a=3, b=4)))
    lines = reported(capsys)
    assert lines[0].startswith("round 0: "), "the warning follows the line of its round"
    assert lines[-1] == f"{limit}a (8 of 24 samples on 3 slots); shares stay even"
    console.handle(StartRound(plan_of(a=2, b=4)))
    assert limits_reported(capsys) == []
    console.handle(StartGroup(plan_of(b=1)))
    assert limits_reported(capsys) == [f"{limit}b (24 of 24 samples on 1 slot); shares stay even"]
    console.handle(StartRound(plan_of(a=1, b=1)))
    assert limits_reported(capsys) == []


def test_steps_hold_no_more_samples_than_a_pass(capsys: pytest.CaptureFixture[str]) -> None:
    console_of(num_train=12).handle(StartRound(plan_of(a=2)))
    assert limits_reported(capsys) == []


def test_the_limit_is_not_reported_while_profiling(capsys: pytest.CaptureFixture[str]) -> None:
    console_of().handle(StartProfiling(groups_of(a=1)))
    assert reported(capsys) == ["profiling: a on 1 slot"]


def test_what_comes_from_elsewhere_is_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    console = console_of()
    console.note("predicted: 0:00:04 left")
    console.warn("a.h5 is damaged")
    console.handle(BadSampleLine(7, "cats/7.png", "truncated"))
    console.note_loading("a", "10 samples of 1 kB")
    assert reported(capsys) == [
        "predicted: 0:00:04 left",
        "warning: a.h5 is damaged",
        "warning: broken sample skipped: cats/7.png: truncated",
        "a loads its data: 10 samples of 1 kB",
    ]


@pytest.mark.parametrize(("launched", "is_coloured"), [("terminal", True), ("batch", False)])
def test_only_a_real_terminal_gets_colours(
    launched: str, is_coloured: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HPCBAL_LAUNCHED", launched)
    console_of().handle(DnnFailed("a", "error", "bug"))
    assert ("\x1b[31m" in capsys.readouterr().out) == is_coloured


def test_results_that_cannot_be_printed_are_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "stdout", Deaf())
    with caplog.at_level(logging.WARNING):
        console_of().show_end("the table", None)
    assert "the results could not be printed: [Errno 5]" in caplog.text


def test_results_are_printed_and_what_ended_the_run_too(capsys: pytest.CaptureFixture[str]) -> None:
    console_of().show_end("the table", InputError("too many broken samples"))
    assert capsys.readouterr() == ("\nthe table\n", "hpcbal: too many broken samples\n")


def test_the_reason_for_the_end_is_printed_even_if_the_results_cannot_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "stdout", Deaf())
    console_of().show_end("the table", InputError("too many broken samples"))
    assert capsys.readouterr().err == "hpcbal: too many broken samples\n"
    assert "the results could not be printed" in caplog.text


def test_an_end_that_cannot_be_printed_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "stdout", Deaf())
    monkeypatch.setattr(sys, "stderr", Deaf())
    console_of().show_end("the table", InputError("too many broken samples"))
    assert "the results could not be printed" in caplog.text
    assert "the error that ended the run could not be printed" in caplog.text

"""Ledgers that hpcbal wrote before they had types are read as those of today."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hpcbal.report import read_run
from hpcbal.telemetry import read_ledger
from hpcbal.telemetry.ledger import (
    EpochDoneLine,
    LeaveRoundLine,
    RoundEndedLine,
    RoundStartedLine,
    RunFinishedLine,
    RunStartedLine,
    lines_of,
)
from hpcbal.telemetry.ledger.codec import entry_of, plain_of
from hpcbal.values import Position

RUN = Path(__file__).parents[3] / "data" / "run_of_schema_1" / "out"


def test_every_line_of_a_real_run_is_read_and_can_be_written_anew() -> None:
    entries = read_ledger(RUN / "ledger.jsonl")
    assert [entry.seq for entry in entries] == list(range(49))
    assert [entry_of(plain_of(entry)) for entry in entries] == entries
    assert Counter(entry.line.event for entry in entries) == {
        "run-started": 1,
        "prediction": 1,
        "round-started": 3,
        "pass-started": 7,
        "epoch-done": 9,
        "checkpoint-written": 10,
        "preprocessing-measured": 2,
        "leave-round": 2,
        "dnn-done": 2,
        "group-left": 3,
        "round-ended": 3,
        "suspend-requested": 5,
        "run-finished": 1,
    }


def test_what_has_moved_is_where_it_belongs() -> None:
    entries = read_ledger(RUN / "ledger.jsonl")
    (started,) = lines_of(entries, RunStartedLine)
    assert (started.kind, started.paradigm, started.regroup) == ("ensemble", "global", True)
    plan = lines_of(entries, RoundStartedLine)[1].plan
    assert (plan.start, plan.gpus_of_dnn) == ({"late": Position(3, 0)}, {"late": (0, 1, 2)})
    epoch = lines_of(entries, EpochDoneLine)[0]
    assert (epoch.facts.num_steps, epoch.facts.num_samples, epoch.facts.num_trained) == (75, 1797, 1438)
    assert epoch.facts.ranks is not None
    assert sum(epoch.facts.ranks.samples) == epoch.facts.num_trained
    assert epoch.facts.balance is not None
    assert sum(epoch.facts.balance.shares) == 24
    (finished,) = lines_of(entries, RunFinishedLine)
    assert (finished.outcome, finished.exit_code, finished.predicted_s) == ("suspended", 75, None)
    assert finished.num_preprocessed > 0


def test_a_report_can_be_made_of_it() -> None:
    data = read_run(RUN)
    assert (data.name, data.state, len(data.rounds), len(data.jobs)) == ("before", "stopped", 3, 3)
    assert [(dnn.name, dnn.epochs, dnn.state) for dnn in data.jobs if dnn.state == "done"] == [
        ("small", 3, "done"),
        ("late", 4, "done"),
    ]


def plain(event: str, **fields: Any) -> dict[str, Any]:
    return {"schema": 1, "seq": 0, "time": "2025-01-31T12:00:00.000Z", "event": event, **fields}


def test_fields_that_early_files_lack_have_the_value_of_then() -> None:
    assert entry_of(plain("leave-round", dnn="a", reason="regroup")).line == LeaveRoundLine(
        "a", "regroup", ""
    )
    assert entry_of(plain("round-ended", index=3)).line == RoundEndedLine(3, False, False)
    started = entry_of(
        plain(
            "run-started", name="x", resumed=False, nodes=[], num_ranks=2, device="cpu", seed=1, versions={}
        )
    ).line
    assert isinstance(started, RunStartedLine)
    assert (started.kind, started.paradigm, started.regroup) == ("ensemble", None, True)


DAMAGE = {
    "plan": (plain("round-started", plan=7), "plan is 7, allowed: an object"),
    "start": (plain("round-started", plan={"start": [1]}), "field plan.index is missing"),
    "steps": (
        plain("epoch-done", dnn="a", pass_index=0, seconds=1.0, busy_s=1.0, metrics={}, steps="x"),
        "x",
    ),
    "ranks": (plain("epoch-done", dnn="a", pass_index=0, seconds=1.0, busy_s=1.0, metrics={}, ranks=3), "3"),
    "new field": (plain("dnn-retried", dnn="a", kind="ensemble"), "unknown field kind, allowed: dnn"),
    "empty": (plain("epoch-done"), "epoch-done: field dnn is missing"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_refused_in_one_sentence_there_too(damage: str) -> None:
    line, message = DAMAGE[damage]
    with pytest.raises(ValueError, match=message):
        entry_of(line)

"""Lines that the next start decides by are durable; plan.json lists the rounds of all starts."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ledger_lines import a, plan_of

from hpcbal.runtime.record.run_ledger import RunLedger
from hpcbal.telemetry import Ledger, read_ledger
from hpcbal.telemetry.ledger import LINE_BY_EVENT, DnnDoneLine, Line, RoundStartedLine, StartedAloneLine

DURABLE = {
    "run-started",
    "run-finished",
    "round-started",
    "started-alone",
    "round-ended",
    "gpu-left-out",
    "dnn-done",
    "dnn-pruned",
    "dnn-failed",
    "dnn-retried",
}


class Recorder:
    """A ledger that keeps what it is given."""

    def __init__(self) -> None:
        self.appended: list[tuple[Line, bool]] = []

    def append(self, line: Line, *, durable: bool = False) -> None:
        self.appended.append((line, durable))


@pytest.mark.parametrize("event", LINE_BY_EVENT)
def test_what_the_next_start_decides_by_is_durable(event: str, tmp_path: Path) -> None:
    ledger: Any = Recorder()
    line = a(LINE_BY_EVENT[event])
    RunLedger(ledger, tmp_path / "plan.json", ()).append(line)
    assert ledger.appended == [(line, event in DURABLE)]


def test_rounds_are_added_to_those_of_earlier_starts(tmp_path: Path) -> None:
    first, second, alone = (plan_of({"a": (0,)}, index=index) for index in range(3))
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        run_ledger = RunLedger(ledger, tmp_path / "plan.json", [first])
        run_ledger.append(RoundStartedLine(second))
        run_ledger.append(StartedAloneLine(alone))
    written = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert [round_["index"] for round_ in written["rounds"]] == [0, 1, 2]
    assert written["rounds"][1]["groups"] == [{"dnn": "a", "gpus": [0]}]


def test_the_end_of_a_dnn_is_recorded_once(tmp_path: Path) -> None:
    done = SimpleNamespace(state="done", detail="3 of at most 3 epochs")
    dnns = {"a": done, "b": SimpleNamespace(state="running", detail="")}
    ensemble: Any = SimpleNamespace(state=SimpleNamespace(dnns=dnns))
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        run_ledger = RunLedger(ledger, tmp_path / "plan.json", ())
        run_ledger.append_ended(ensemble)
        run_ledger.append_ended(ensemble)
        dnns["b"] = done
        run_ledger.append_ended(ensemble)
    lines = [entry.line for entry in read_ledger(tmp_path / "ledger.jsonl")]
    assert lines == [DnnDoneLine(name, "3 of at most 3 epochs") for name in ("a", "b")]

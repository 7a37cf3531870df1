"""Lines that the next start decides by are durable."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ledger_lines import a

from hpcbal.runtime.record.run_ledger import RunLedger
from hpcbal.telemetry import Ledger, read_ledger
from hpcbal.telemetry.ledger import LINE_BY_EVENT, DnnDoneLine, Line

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
def test_what_the_next_start_decides_by_is_durable(event: str) -> None:
    ledger: Any = Recorder()
    line = a(LINE_BY_EVENT[event])
    RunLedger(ledger).append(line)
    assert ledger.appended == [(line, event in DURABLE)]


def test_the_end_of_a_dnn_is_recorded_once(tmp_path: Path) -> None:
    done = SimpleNamespace(state="done", detail="3 of at most 3 epochs")
    dnns = {"a": done, "b": SimpleNamespace(state="running", detail="")}
    ensemble: Any = SimpleNamespace(state=SimpleNamespace(dnns=dnns))
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        run_ledger = RunLedger(ledger)
        run_ledger.append_ended(ensemble)
        run_ledger.append_ended(ensemble)
        dnns["b"] = done
        run_ledger.append_ended(ensemble)
    lines = [entry.line for entry in read_ledger(tmp_path / "ledger.jsonl")]
    assert lines == [DnnDoneLine(name, "3 of at most 3 epochs") for name in ("a", "b")]

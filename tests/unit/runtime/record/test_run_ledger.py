"""Lines that the next start decides by are durable."""

from __future__ import annotations

from typing import Any

import pytest
from ledger_lines import a

from hpcbal.events.line import Line
from hpcbal.runtime.record.run_ledger import RunLedger
from hpcbal.telemetry.ledger.registry import LINE_BY_EVENT

DURABLE = {
    "run-started",
    "run-finished",
    "round-started",
    "group-started",
    "round-ended",
    "slot-left-out",
    "dnn-done",
    "dnn-pruned",
    "dnn-stopped",
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
    RunLedger(ledger).handle(line)
    assert ledger.appended == [(line, event in DURABLE)]

"""Ledgers as the journal writes them, made by hand: every second in them is chosen."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ledger_lines import a, entry, plan_of

from hpcbal.events.history import BalanceFacts, EpochFacts, RankFacts, Straggler
from hpcbal.report.model import ReportData
from hpcbal.report.reading.run_files import read_run
from hpcbal.telemetry.ledger.codec import Entry, plain_of
from hpcbal.telemetry.ledger.registry import LINE_BY_EVENT
from hpcbal.telemetry.ledger.run import NodeFacts

EPOCH_0 = 1_790_000_000.0  # unix seconds of the first line


class History:
    """Appends lines at `at` seconds after the first one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._entries: list[Entry] = []
        self._joined: dict[str, tuple[float, int]] = {}  # when, and with how many slots

    def add(self, at: float, event: str, **fields: Any) -> History:
        self._entries.append(entry(a(LINE_BY_EVENT[event], **fields), len(self._entries), EPOCH_0 + at))
        return self

    def start(
        self, at: float, slots: tuple[int, ...] = (2,), *, resumed: bool = False, kind: str = "ensemble"
    ) -> History:
        return self.add(
            at,
            "run-started",
            kind=kind,
            name="birds",
            resumed=resumed,
            nodes=tuple(NodeFacts(f"n{i}", count) for i, count in enumerate(slots)),
            num_ranks=4,
            device="emulated",
            seed=1,
            versions={"hpcbal": "9.9", "python": "3.11"},
        )

    def round(self, at: float, index: int, groups: dict[str, tuple[int, ...]], **epochs: int) -> History:
        self._joined |= {dnn: (at, len(slots)) for dnn, slots in groups.items()}
        rates = dict.fromkeys(groups, 100.0)
        facts = plan_of(groups, epochs, index=index, num_preprocessors=2, predicted_rate_samples_per_s=rates)
        return self.add(at, "round-started", plan=facts)

    def epoch(
        self,
        at: float,
        dnn: str,
        seconds: float,
        wait_s: float = 0.0,
        accuracy: float = 0.5,
        straggler: Straggler | None = None,
        balance: BalanceFacts | None = None,
        ranks: RankFacts | None = None,
    ) -> History:
        facts = EpochFacts(
            wait_s=wait_s,
            num_steps=10,
            num_samples=1000,
            num_trained=800,
            trained_s=(seconds - wait_s) * 0.9,
            ranks=ranks,
            balance=balance,
        )
        return self.add(
            at,
            "epoch-done",
            dnn_id=dnn,
            seconds=seconds,
            busy_s=seconds - wait_s,
            metrics={"val_accuracy": accuracy},
            facts=facts,
            straggler=straggler,
        )

    def leave(self, at: float, dnn: str, *, reported: bool = True) -> History:
        if reported:
            self.add(at, "leave-round", dnn_id=dnn, reason="converged", detail="")
        joined, num_slots = self._joined.pop(dnn, (at, 0))
        seconds = at - joined
        return self.add(at, "group-left", dnn_id=dnn, wall_time_s=seconds, slot_seconds=seconds * num_slots)

    def write(self) -> Path:
        text = "".join(json.dumps(plain_of(each)) + "\n" for each in self._entries)
        (self.directory / "ledger.jsonl").write_text(text, encoding="utf-8")
        return self.directory

    def read(self) -> ReportData:
        return read_run(self.write())


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path)


@pytest.fixture
def finished(history: History) -> ReportData:
    """Two DNNs on two slots for ten seconds; b fails half-way."""
    history.start(0).round(1, 0, {"a": (0,), "b": (1,)})
    history.epoch(5, "a", seconds=3.0, wait_s=1.0, accuracy=0.7)
    history.add(
        6, "dnn-failed", dnn_id="b", cause="nan", detail="Traceback\n  File x\nValueError: <NaN> & co"
    )
    history.leave(6, "b", reported=False).leave(9, "a").add(9, "dnn-done", dnn_id="a", detail="")
    history.add(9, "round-ended", index=0, suspended=False)
    history.add(10, "run-finished", outcome="failed-dnns", exit_code=3, decided_s=0.5)
    return history.read()


@pytest.fixture(scope="session")
def shares() -> Callable[[ReportData, int], dict[str, float]]:
    """Seconds of a slot by what it did, zeros left out, to milliseconds."""

    def of(data: ReportData, slot: int) -> dict[str, float]:
        return {kind: round(s, 3) for kind, s in data.use[slot].seconds.items() if round(s, 3)}

    return of

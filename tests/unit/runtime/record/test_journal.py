"""The events of a run are in its files: ledger, status, results."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from hpcbal.cluster.layout import Cluster, Node
from hpcbal.config import load_ensemble
from hpcbal.config.scheduling import settings_of, specs_of
from hpcbal.control.ensemble import Ensemble
from hpcbal.events.ensemble import (
    CheckpointWritten,
    DnnFailed,
    EpochDone,
    Event,
    Finish,
    GroupLeft,
    Instruction,
    Started,
    StartRound,
    SuspendRequested,
)
from hpcbal.events.history import EpochFacts, Position
from hpcbal.policies.rates import RateTable
from hpcbal.runtime.handoff.launch_dir import RunRequest
from hpcbal.runtime.record.accounts import PreprocessingStats
from hpcbal.runtime.record.console import Console
from hpcbal.runtime.record.journal import Journal
from hpcbal.runtime.resuming.opening import open_run
from hpcbal.telemetry.ledger.dnn_lines import ModelWarningLine
from hpcbal.telemetry.ledger.file import read_ledger
from hpcbal.telemetry.streams.metrics import read_metrics
from hpcbal.telemetry.views.results import read_results

NUM_POSITIONS = 60
METRICS = {"loss": 1.5, "accuracy": 0.5, "val_loss": 1.25, "val_accuracy": 0.75}


class Record:
    """A journal that hears of events and instructions as from the scheduler."""

    def __init__(self, opened: Any) -> None:
        self.run = opened.run
        config = opened.config
        cluster = Cluster((Node("host", 2),))
        rates = RateTable({dnn.name: {1: 100.0, 2: 190.0} for dnn in config.dnns}, 2)
        settings = settings_of(config, NUM_POSITIONS)
        self.ensemble = Ensemble(specs_of(config), cluster, settings, rates, opened.earlier.resume)
        self.stats = PreprocessingStats(config.data.max_bad_fraction)
        keys = {dnn.name: dnn.name for dnn in config.dnns}
        console = Console(config, cluster.num_slots, NUM_POSITIONS)
        self.journal = Journal(opened, self.ensemble, console, cluster.num_slots, keys)
        self.finished: list[Finish] = []

    def happen(self, event: Event) -> list[Instruction]:
        self.journal.publish(event)
        live = list(self.ensemble.state.live)
        instructions = self.ensemble.handle(event)
        self.journal.publish_ended([name for name in live if name not in self.ensemble.state.live])
        for instruction in instructions:
            self.journal.publish(instruction)
            if isinstance(instruction, Finish):
                self.finished.append(instruction)
        return instructions

    def epoch(self, name: str, pass_index: int) -> list[Instruction]:
        facts = EpochFacts(wait_s=0.1, num_steps=4, num_samples=60, num_trained=48, trained_s=0.5)
        return self.happen(EpochDone(name, pass_index, METRICS, 1.0, 0.9, facts=facts))

    def leave(self, name: str, epochs: int, position: Position) -> None:
        self.happen(CheckpointWritten(name, epochs, position, 0.1, 0.01))
        self.happen(GroupLeft(name))

    def end(self, exit_code: int) -> str:
        (finish,) = self.finished
        return self.journal.finish(self.stats, finish.outcome, exit_code)

    def lines(self, *names: str) -> list[Any]:
        lines = [entry.line for entry in read_ledger(self.run.ledger)]
        return [line for line in lines if not names or line.event in names]

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self.run.status.read_text(encoding="utf-8"))
        return status


@pytest.fixture
def record(in_process: Any) -> Iterator[Record]:
    dnn: dict[str, Any] = {"name": "a", "model": "in_process_toys:toy", "stop": {"max_epochs": 2}}
    in_process.configure(dnns=[dnn])
    request = RunRequest(in_process.folder / "run.yaml")
    with contextlib.closing(open_run(request, load_ensemble(request.config_path))) as opened:
        yield Record(opened)


def test_a_run_is_a_story_in_the_ledger_and_a_row_in_the_results(record: Record) -> None:
    (start,) = record.happen(Started())
    assert isinstance(start, StartRound)
    record.epoch("a", 0)
    record.happen(CheckpointWritten("a", 1, Position(0, NUM_POSITIONS), 0.1))
    record.epoch("a", 1)
    record.leave("a", 2, Position(1, NUM_POSITIONS))
    table = record.end(0)
    assert [line.event for line in record.lines()] == [
        "round-started",
        *("epoch-done", "pass-started", "checkpoint-written"),
        *("epoch-done", "leave-round", "checkpoint-written"),
        *("dnn-done", "group-left", "round-ended", "run-finished"),
    ]
    assert [line.metrics for line in record.lines("epoch-done")] == [METRICS] * 2
    assert [line.facts.num_trained for line in record.lines("epoch-done")] == [48] * 2
    assert (record.lines("run-finished")[0].outcome, record.status()["exit_code"]) == ("done", 0)
    (row,) = read_results(record.run.results)
    assert (row.name, row.state, row.epochs) == ("a", "done", 2)
    assert (row.best, row.numbers["best_epoch"], row.numbers["final_loss"]) == (0.75, 1, 1.5)
    assert "0.7500" in table


def test_an_epoch_of_which_nothing_was_measured_has_no_number_of_slots(record: Record) -> None:
    record.happen(Started())
    record.epoch("a", 0)
    record.happen(EpochDone("a", 1, METRICS, 1.0))
    record.leave("a", 2, Position(1, NUM_POSITIONS))
    record.end(0)
    measured, other = read_metrics(record.run.metrics("a"))
    assert (measured["num_slots"], "num_slots" in other) == (1, False)


def test_the_results_are_there_while_the_run_trains(record: Record) -> None:
    record.happen(Started())
    record.epoch("a", 0)
    record.stats.bad[7] = ("point 7", "broken")
    record.journal.heartbeat(record.stats)
    (row,) = read_results(record.run.results)
    assert (row.state, row.epochs, row.numbers["bad_samples"]) == ("running", 1, 1)


def test_a_warning_about_a_model_is_recorded_once(record: Record) -> None:
    warned = [("a", "strange"), ("b", "strange"), ("a", "strange"), ("a", "odd")]
    for each in warned:
        record.journal.publish(ModelWarningLine(*each))
    assert [(line.dnn_id, line.detail) for line in record.lines("model-warning")] == [
        *(("a", "strange"), ("b", "strange"), ("a", "odd"))
    ]


def test_a_failure_is_recorded_with_its_cause(record: Record) -> None:
    record.happen(Started())
    record.happen(DnnFailed("a", "oom", "MemoryError: 17 GiB asked for"))
    record.happen(GroupLeft("a"))
    record.end(3)
    (failed,) = record.lines("dnn-failed")
    assert (failed.dnn_id, failed.cause) == ("a", "oom")
    (row,) = read_results(record.run.results)
    assert (row.state, row.cause) == ("failed", "oom: MemoryError: 17 GiB asked for")


def test_a_stop_is_recorded_and_the_status_says_that_the_run_can_be_resumed(record: Record) -> None:
    record.happen(Started())
    record.journal.heartbeat(record.stats)
    assert record.status()["phase"] not in ("suspended", "done")
    record.happen(SuspendRequested("signal TERM"))
    record.leave("a", 0, Position(0, 16))
    record.end(75)
    assert record.lines("suspend-requested")[0].reason == "signal TERM"
    (written,) = record.lines("checkpoint-written")
    assert (written.epoch, written.position) == (0, Position(0, 16))
    assert record.lines("round-ended")[0].suspended is True
    assert record.status()["phase"] == "suspended"

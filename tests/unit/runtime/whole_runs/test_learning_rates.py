"""Whole runs whose learning rate changes: the same after a stop, and recorded."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

SCHEDULES: dict[str, Any] = {
    "cosine": {"name": "cosine", "warmup": 0.5},
    "plateau": {"name": "plateau", "patience": 1, "factor": 0.5},
    "own": {"name": "in_process_toys:falling", "args": {"first": 0.3}},
}


def use(lab: Any, output: str, schedule: Any, paradigm: str = "global") -> None:
    optimizer = {"name": "sgd", "learning_rate": 0.3, "schedule": schedule, "clip_norm": 0.5}
    lab.use(paradigm, output, dnns=[{**dnn, "optimizer": optimizer} for dnn in lab.dnns(hook="act")])


def rates_of(lab: Any, name: str) -> list[float]:
    lines = (lab.out / "dnns" / name / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["learning_rate"] for line in lines]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_stopped_run_goes_on_with_the_rates_of_an_undisturbed_one(
    lab: Any, hooks: Any, schedule: str
) -> None:
    hooks["act"] = lambda step: None
    use(lab, "whole", SCHEDULES[schedule])
    assert lab.run() == 0
    wanted = lab.outcome()
    rates = {name: rates_of(lab, name) for name in lab.epochs}
    assert any(len(set(each)) > 1 for each in rates.values())
    use(lab, "stopped", SCHEDULES[schedule])
    lab.stop_at(14, rank=2)
    hooks["act"] = lambda step: None
    assert lab.run() == 0
    lab.assert_same(lab.outcome(), wanted)
    assert {name: rates_of(lab, name) for name in lab.epochs} == rates


def numbers_of(lab: Any) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl of `a`, without times."""
    lines = (lab.out / "dnns" / "a" / "metrics.jsonl").read_text().splitlines()
    return [{**json.loads(line), "time": "", "seconds": 0.0} for line in lines]


def test_the_numbers_of_epochs_are_the_same_after_a_kill(lab: Any, hooks: Any) -> None:
    hooks["act"] = lambda step: None
    use(lab, "whole", SCHEDULES["cosine"])
    assert lab.run() == 0
    wanted = numbers_of(lab)
    use(lab, "killed", SCHEDULES["cosine"])
    lab.kill_when(lambda: any(line.epoch > 1 for line in lab.events("checkpoint-written")))
    (lab.out / "dnns" / "a" / "metrics.jsonl").unlink(missing_ok=True)  # as if nothing had been flushed
    assert lab.run() == 0
    assert numbers_of(lab) == wanted
    assert {"num_slots", "learning_rate"} <= wanted[0].keys()


@pytest.mark.parametrize("num_slots", [1, 2])
def test_an_epoch_that_a_killed_rank_0_did_not_write_keeps_its_numbers(
    lab: Any, hooks: Any, monkeypatch: pytest.MonkeyPatch, num_slots: int
) -> None:
    def use_one(output: str) -> None:
        optimizer = {"name": "sgd", "learning_rate": 0.3, "schedule": SCHEDULES["plateau"]}
        callback = {"name": "in_process_toys:call", "args": {"hook": "ended"}}
        dnn = {**lab.dnn("a", 4), "optimizer": optimizer, "callbacks": [callback]}
        lab.use(output=output, num_slots=num_slots, dnns=[dnn])

    hooks["ended"] = lambda epoch: None
    use_one("whole")
    assert lab.run() == 0
    wanted = numbers_of(lab)
    assert {row["num_slots"] for row in wanted} == {num_slots}
    use_one("killed")
    lost = lab.kill_before_epoch(monkeypatch, 2)
    assert len(lab.events("epoch-done")) == 1
    assert lab.run() == 0
    assert numbers_of(lab) == wanted
    found = lab.events("epoch-done")[1]
    assert found == replace(lost, straggler=None, balancing_would_save=None)


def test_a_schedule_that_raises_fails_its_dnn_only(lab: Any) -> None:
    dnns = lab.dnns()
    wrong = {"name": "sgd", "learning_rate": 0.3, "schedule": "in_process_toys:negative"}
    dnns[0] = {**dnns[0], "optimizer": wrong}
    lab.use(dnns=dnns)
    assert lab.run() == 3
    (failed,) = lab.events("dnn-failed")
    assert failed.dnn_id == dnns[0]["name"]
    assert "in_process_toys:negative: it returned -1.0 for step 2, allowed: a number, 0" in failed.detail

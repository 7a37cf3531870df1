"""A pruned DNN frees its slots like one that has converged, whatever stops the run in between."""

from __future__ import annotations

import csv
import json
from typing import Any

import numpy as np
import pytest

from hpcbal.ensembling.evidence import decoded

ROUNDS = ["global", "local", "homogeneous"]
ASHA = {"rule": "asha", "reduction": 2, "min_epochs": 1}


def dnns(lab: Any, **args: Any) -> list[dict[str, Any]]:
    """Three DNNs of which b is the best and a the worst, by accuracy, from the first epoch on."""
    rates = {"a": 1e-6, "b": 0.1, "c": 1e-3}
    return [
        {
            **lab.dnn(name, 4, **args),
            "optimizer": {"name": "sgd", "learning_rate": rate},
        }
        for name, rate in rates.items()
    ]


@pytest.mark.parametrize("paradigm", [*ROUNDS, "independent", "auto"])
def test_only_the_best_dnn_trains_to_its_end(lab: Any, capsys: Any, paradigm: str) -> None:
    lab.use(paradigm, dnns=dnns(lab), prune=ASHA)
    assert lab.run() == 0
    states = lab.states()
    assert states["b"] == ("done", 4)
    assert {name for name, (state, _) in states.items() if state == "pruned"} == {"a", "c"}
    pruned = {line.dnn_id: line.detail for line in lab.events("dnn-pruned")}
    assert set(pruned) == {"a", "c"}
    assert pruned["a"].endswith("after epoch 1, 1 promoted")
    shown = capsys.readouterr().out
    assert f"a pruned after 1 epoch, best val acc 0.2500 ({pruned['a']})" in shown
    assert "1 done, 2 pruned in this start" in shown
    assert "1 done, 2 pruned" in shown
    with open(lab.out / "results.csv", newline="") as file:
        assert {row["name"]: row["state"] for row in csv.DictReader(file)}["a"] == "pruned"
    status = json.loads((lab.out / "status.json").read_text())
    assert status["exit_code"] == 0


@pytest.mark.parametrize("paradigm", [*ROUNDS, "auto"])
def test_stops_and_deaths_change_nothing_about_who_is_pruned(lab: Any, paradigm: str) -> None:
    lab.use(paradigm, "calm", dnns=dnns(lab), prune=ASHA)
    assert lab.run() == 0
    calm = lab.outcome()
    lab.use(paradigm, dnns=dnns(lab, hook="act"), prune=ASHA)
    lab.stop_at(3, rank=2)
    lab.kill_at(5)
    lab.stop_at(2, rank=1)
    lab.at_steps([], lambda: None)
    assert lab.run() == 0
    lab.assert_same(lab.outcome(), calm)
    states = {name: state for name, (state, _) in lab.states().items()}
    assert states == {"a": "pruned", "b": "done", "c": "pruned"}


def test_pruned_dnns_train_on_once_the_rule_is_gone(lab: Any) -> None:
    lab.use(dnns=dnns(lab), prune=ASHA)
    assert lab.run() == 0
    assert lab.states()["a"] == ("pruned", 1)
    lab.use(dnns=dnns(lab))
    assert lab.run() == 0
    assert set(lab.states().values()) == {("done", 4)}


def test_dnns_outside_of_the_patterns_are_neither_compared_nor_pruned(lab: Any) -> None:
    lab.use(dnns=dnns(lab), prune={**ASHA, "dnns": ["[bc]"]})
    assert lab.run() == 0
    assert lab.states() == {"a": ("done", 4), "b": ("done", 4), "c": ("pruned", 1)}


def test_a_pruned_dnn_that_has_trained_on_without_the_rule_is_judged_again(lab: Any) -> None:
    lab.use(dnns=dnns(lab, hook="act"), prune=ASHA)
    lab.at_steps([], lambda: None)
    assert lab.run() == 0
    before = lab.states()
    assert before["a"] == ("pruned", 1)
    lab.use(dnns=dnns(lab, hook="act"))
    lab.stop_at(1, rank=1)
    lab.use(dnns=dnns(lab, hook="act"), prune=ASHA)
    assert lab.run() == 0
    after = lab.states()
    assert [name for name in after if after[name][1] > before[name][1]], "the pass that was begun is finished"
    assert {state for state, _ in after.values()} == {"done", "pruned"}


COMMITTEE = {"rule": "committee", "min_epochs": 2, "samples": 10, "tolerance": 0.05}


def evidence_of(lab: Any) -> dict[tuple[str, int], str]:
    """The predictions of each DNN after each pass."""
    return {(line.dnn_id, line.pass_index): line.facts.evidence for line in lab.events("epoch-done")}


def test_a_committee_is_the_same_however_often_the_run_is_stopped(lab: Any) -> None:
    lab.use("global", "calm", dnns=dnns(lab), prune=COMMITTEE)
    assert lab.run() == 0
    calm, seen = lab.outcome(), evidence_of(lab)
    states = lab.states()
    assert "pruned" in {state for state, _ in states.values()}
    assert all(len(decoded(text)[1]) == 10 for text in seen.values())
    assert not any(np.isnan(decoded(text)[1]).any() for text in seen.values())
    lab.use("global", dnns=dnns(lab, hook="act"), prune=COMMITTEE)
    lab.stop_at(3, rank=2)
    lab.kill_at(5)
    assert lab.run() == 0
    lab.assert_same(lab.outcome(), calm)
    assert lab.states() == states
    assert evidence_of(lab) == seen


def test_beside_other_rules_no_predictions_travel(lab: Any) -> None:
    lab.use(dnns=dnns(lab), prune={**COMMITTEE, "dnns": ["[bc]"]})
    assert lab.run() == 0
    assert {name for (name, _), text in evidence_of(lab).items() if text is not None} == {"b", "c"}
    assert lab.states()["a"] == ("done", 4)

"""Paradigms over real ranks; tests/unit/runtime/whole_runs tests their contract in one process."""

from __future__ import annotations

import signal

import pytest

pytestmark = pytest.mark.e2e


def test_a_kill_loses_nothing_without_rounds(lab):
    """Three DNNs on two slots, so that one has to wait."""
    lab.configure(schedule={"paradigm": "elastic"}, slots={"per_node": 2})
    running = lab.start()
    running.until(lambda: len(lab.events("epoch-done")) >= 4, "epoch")
    running.signal_rank(3, signal.SIGKILL)
    done = running.wait(30.0)
    assert done.code == 1, done
    assert "rank 3 (trainer, pid " in done.err, done
    done = lab.run()
    assert done.code == 0, done
    epochs = {name: [entry[0] for entry in history] for name, (history, _) in lab.outcome().items()}
    assert epochs == {"a": [1, 2, 3, 4, 5], "b": [1, 2, 3], "c": [1, 2, 3, 4]}
    assert [row.state for row in lab.results().values()] == ["done"] * 3


def test_groups_form_and_change_while_others_train(lab):
    """Two slots for the longest DNN, one for each other in turn; the last one then gets all three."""
    rates = {
        "a": {1: 100, 2: 195, 3: 285},
        "b": {1: 75, 2: 145, 3: 210},
        "c": {1: 75, 2: 145, 3: 210},
    }

    def with_these_rates(config):
        config["backend"]["rates"] = rates

    lab.configure(with_these_rates, schedule={"paradigm": "elastic"}, slots={"per_node": 3})
    done = lab.run()
    assert done.code == 0, done
    slots = {"a": [], "b": [], "c": []}
    for line in lab.events("group-started"):
        (group,) = line.plan.groups
        slots[group.dnn_id].append(len(group.slots))
    assert any(len(counts) > 1 and max(counts) == 3 for counts in slots.values()), slots
    left = [line.detail for line in lab.events("leave-round") if line.reason == "regroup"]
    assert "goes on with 3 slots" in left
    assert "on slots 0, 1, 2, from pass" in done.out
    passes = {"a": [], "b": [], "c": []}
    for line in lab.events("epoch-done"):
        passes[line.dnn_id].append(line.pass_index)
    assert passes == {"a": [0, 1, 2, 3, 4], "b": [0, 1, 2], "c": [0, 1, 2, 3]}

"""Paradigms over real ranks; tests/unit/runtime/whole_runs tests their contract in one process.

test_soak_kills.py kills a trainer of a run without rounds.
"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.e2e


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

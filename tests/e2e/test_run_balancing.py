"""Groups of unequal slots over real ranks: shares follow speed, and a slot that delays all is left out.

tests/unit/runtime/whole_runs tests the rest in one process.
"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.e2e

# The only DNN on three slots; the last one is three times as slow as the others.
UNLIKE = {
    "dnns": [{"name": "a", "model": "toys:toy", "batch_size": 24, "stop": {"max_epochs": 16}}],
    "backend": {
        "name": "emulated",
        "precision": "float64",
        "rates": {"a": {1: 400, 2: 780, 3: 1100}},
        "workers": [{"speed": 1.5}, {"speed": 1.5}, {"speed": 0.5}],
    },
}


def ended_alike(got, wanted) -> None:
    """Weights agree to what sums in another order leave of float64, over some 60 steps."""
    for name, (history, arrays) in wanted.items():
        assert got[name][0][-1][2] == pytest.approx(history[-1][2], rel=1e-9)
        assert got[name][1].keys() == arrays.keys()
        for key, array in arrays.items():
            assert got[name][1][key] == pytest.approx(array, rel=1e-9, abs=1e-9), key


def test_a_slow_slot_gets_less_and_the_weights_are_those_of_even_shares(lab):
    policy, outcomes, late_s = "lb-bsp-cpu", {}, {}
    for name in ("even", policy):
        lab.configure(**UNLIKE, balance={"policy": name}, output={"dir": name})
        lab.out = lab.folder / name
        done = lab.run()
        assert done.code == 0, done
        outcomes[name] = lab.outcome()
        ranks = [epoch.facts.ranks for epoch in lab.events("epoch-done")[-8:]]  # one may be hit by other load
        late_s[name] = sum(max(each.compute_s) - min(each.compute_s) for each in ranks)
    balanced = lab.events("epoch-done")[-1]
    assert sum(balanced.facts.balance.shares) == 24
    assert balanced.facts.balance.shares[2] < min(balanced.facts.balance.shares[:2])
    assert sum(balanced.facts.ranks.samples) == balanced.facts.num_trained
    assert late_s[policy] < late_s["even"]
    ended_alike(outcomes[policy], outcomes["even"])


# Slot 2 takes 0.1 s to start a step for which the two others take 0.03 s together.
HOPELESS = {
    **UNLIKE,
    "backend": {**UNLIKE["backend"], "workers": [{}, {}, {"launch_s": 0.1}]},
}


def test_a_group_continues_without_a_slot_that_holds_it_up(lab):
    lab.configure(**HOPELESS, balance={"policy": "fitted"})
    done = lab.run()
    assert done.code == 0, done
    (left_out,) = lab.events("slot-left-out")
    assert (left_out.dnn_id, left_out.slot) == ("a", 2)
    assert "a is faster without slot 2" in done.out
    assert [plan.plan.groups[0].slots for plan in lab.events("round-started")] == [(0, 1, 2), (0, 1)]
    (regroup,) = [line for line in lab.events("leave-round") if line.reason == "regroup"]
    assert regroup.detail == "a goes on without slot 2"
    assert lab.status()["dnns"][0]["left_out"] == [2]
    epochs = lab.events("epoch-done")
    num_slots = [len(epoch.facts.ranks.samples) for epoch in epochs]
    assert (len(num_slots), set(num_slots)) == (16, {2, 3})
    assert num_slots == sorted(num_slots, reverse=True)
    assert all(sum(epoch.facts.ranks.samples) == epoch.facts.num_trained for epoch in epochs)

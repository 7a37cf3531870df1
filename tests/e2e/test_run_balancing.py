"""Groups of unlike GPUs: shares follow speed, learning stays as it is, and who is late is named."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.e2e

LATE_S, STEPS = 0.2, 3

# The only DNN on three GPUs; the last one is three times as slow as the others.
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


@pytest.mark.parametrize("policy", ["fitted", "lb-bsp-cpu"])
def test_a_slow_gpu_gets_less_and_the_weights_are_those_of_even_shares(lab, policy):
    outcomes, late_s = {}, {}
    for name in ("even", policy):
        lab.configure(**UNLIKE, balance={"policy": name}, output={"dir": name})
        lab.out = lab.folder / name
        done = lab.run()
        assert done.code == 0, done
        outcomes[name] = lab.outcome()
        ranks = lab.events("epoch-done")[-1]["ranks"]
        late_s[name] = max(ranks["compute_s"]) - min(ranks["compute_s"])
    balanced = lab.events("epoch-done")[-1]
    assert sum(balanced["balance"]["shares"]) == 24
    assert balanced["balance"]["shares"][2] < min(balanced["balance"]["shares"][:2])
    assert sum(balanced["ranks"]["samples"]) == balanced["trained_samples"]
    assert late_s[policy] < late_s["even"]
    ended_alike(outcomes[policy], outcomes["even"])


def test_a_stop_inside_a_pass_changes_no_more_than_rounding(lab):
    lab.configure(**UNLIKE, balance={"policy": "fitted"})
    running = lab.start()
    running.until(lambda: len(lab.events("epoch-done")) >= 4, "epoch 4")
    running.process.terminate()
    assert running.wait().code == 75
    done = lab.run()
    assert done.code == 0, done
    stopped = lab.outcome()
    lab.configure(**UNLIKE, output={"dir": "even"})
    lab.out = lab.folder / "even"
    done = lab.run()
    assert done.code == 0, done
    ended_alike(stopped, lab.outcome())


def test_a_sleep_in_the_backward_pass_of_a_rank_is_its_compute(lab):
    """Trainers are ranks 2 to 4, so rank 3 has GPU 1."""
    late = {"trouble": "late", "only_rank": 3}
    dnn = {"name": "a", "model": "toys:toy", "args": late, "batch_size": 32, "stop": {"max_epochs": 2}}
    rates = {"a": {1: 400, 2: 780, 3: 1100}}
    lab.configure(dnns=[dnn], backend={"name": "emulated", "precision": "float64", "rates": rates})
    done = lab.run()
    assert done.code == 0, done
    for epoch in lab.events("epoch-done"):
        assert (epoch["straggler"]["gpu"], epoch["straggler"]["why"]) == (1, "compute")
        ranks = epoch["ranks"]
        assert ranks["compute_s"][1] > STEPS * LATE_S > max(ranks["compute_s"][::2])
        assert min(ranks["collective_s"][::2]) > ranks["collective_s"][1]
    assert lab.status()["dnns"][0]["straggler"]["gpu"] == 1

"""Groups of unequal GPUs: shares follow speed, learning does not change, and stragglers are named."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hpcbal.telemetry.streams.timeline import read_timeline

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
        ranks = [epoch.facts.ranks for epoch in lab.events("epoch-done")[-8:]]  # one may be hit by other load
        late_s[name] = sum(max(each.compute_s) - min(each.compute_s) for each in ranks)
    balanced = lab.events("epoch-done")[-1]
    assert sum(balanced.facts.balance.shares) == 24
    assert balanced.facts.balance.shares[2] < min(balanced.facts.balance.shares[:2])
    assert sum(balanced.facts.ranks.samples) == balanced.facts.num_trained
    assert late_s[policy] < late_s["even"]
    ended_alike(outcomes[policy], outcomes["even"])


def test_a_limit_below_an_even_share_is_reported_once(lab):
    unlike = {**UNLIKE, "dnns": [{**UNLIKE["dnns"][0], "stop": {"max_epochs": 3}}]}
    lab.configure(**unlike, balance={"policy": "fitted", "max_samples_per_gpu": 6})
    done = lab.run()
    assert done.code == 0, done
    assert done.out.count("warning: balance.max_samples_per_gpu: got 6, less than an even share") == 1, done
    assert "a (8 of 24 samples on 3 slots)" in done.out, done
    assert lab.events("epoch-done")[-1].facts.balance.shares == (8, 8, 8)


def test_a_stop_inside_a_pass_changes_no_more_than_rounding(lab):
    unlike = {**UNLIKE, "dnns": [{**UNLIKE["dnns"][0], "stop": {"max_epochs": 8}}]}
    lab.configure(**unlike, balance={"policy": "fitted"})
    running = lab.start()
    running.until(lambda: len(lab.events("epoch-done")) >= 4, "epoch 4")
    running.process.terminate()
    assert running.wait().code == 75
    done = lab.run()
    assert done.code == 0, done
    stopped = lab.outcome()
    lab.configure(**unlike, output={"dir": "even"})
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
        assert (epoch.straggler.gpu, epoch.straggler.why) == (1, "compute")
        ranks = epoch.facts.ranks
        assert ranks.compute_s[1] > STEPS * LATE_S
        assert min(ranks.collective_s[::2]) > ranks.collective_s[1]
    assert lab.status()["dnns"][0]["straggler"]["gpu"] == 1
    marks = [event for event in read_timeline(lab.out / "timeline.json.gz") if event["ph"] == "i"]
    assert [event["tid"] for event in marks] == [3 + 1] * 2
    assert all(str(event["name"]).endswith(": compute") for event in marks)


def test_alg_2_moves_samples_from_the_slowest_gpu_to_the_fastest(lab):
    """No sample is lost or doubled on the way, and the weights stay those of even shares."""
    dnn = {"name": "a", "model": "toys:toy", "batch_size": 60, "stop": {"max_epochs": 6}}
    workers = [{"speed": 1.0}, {"speed": 0.5}, {"speed": 2.0}]
    backend = {"name": "emulated", "precision": "float64", "rates": {"a": {1: 2000}}, "workers": workers}
    data = {"dataset": "toys:points", "args": {"num_samples": 750}, "validation_fraction": 0.2}
    schedule = {"delta": "15%", "profiling": {"max_batches": 2, "timed_batches": 1, "max_gpus": 3}}
    outcomes = {}
    for policy in ("even", "lb-bsp-gpu"):
        lab.configure(
            dnns=[dnn],
            backend=backend,
            data=data,
            schedule=schedule,
            balance={"policy": policy},
            output={"dir": policy},
        )
        lab.out = lab.folder / policy
        done = lab.run()
        assert done.code == 0, done
        outcomes[policy] = lab.outcome()
    epochs = lab.events("epoch-done")
    assert [epoch.facts.num_trained for epoch in epochs] == [600] * 6
    assert [sum(epoch.facts.ranks.samples) for epoch in epochs] == [600] * 6
    shares = [epoch.facts.balance.shares for epoch in epochs]
    assert [sum(split) for split in shares] == [60] * 6
    slowest, fastest = [split[1] for split in shares], [split[2] for split in shares]
    assert max(slowest) <= 20
    assert slowest[-1] <= 15  # a move is one of 5 samples, later on of 1
    assert fastest[-1] >= 25
    assert sum(epoch.facts.balance.changes for epoch in epochs) >= 1
    assert epochs[0].facts.ranks.samples[1] > epochs[-1].facts.ranks.samples[1]
    ended_alike(outcomes["lb-bsp-gpu"], outcomes["even"])


# GPU 2 takes 0.1 s to start a step for which the two others take 0.03 s together.
HOPELESS = {
    **UNLIKE,
    "backend": {**UNLIKE["backend"], "workers": [{}, {}, {"launch_s": 0.1}]},
}


@pytest.mark.parametrize("policy", ["fitted", "lb-bsp-gpu"])
def test_a_group_continues_without_a_gpu_that_holds_it_up(lab, policy):
    lab.configure(**HOPELESS, balance={"policy": policy})
    done = lab.run()
    assert done.code == 0, done
    (left_out,) = lab.events("gpu-left-out")
    assert (left_out.dnn, left_out.gpu) == ("a", 2)
    assert "a is faster without slot 2" in done.out
    assert [plan.plan.groups[0].gpus for plan in lab.events("round-started")] == [(0, 1, 2), (0, 1)]
    (regroup,) = [line for line in lab.events("leave-round") if line.reason == "regroup"]
    assert regroup.detail == "a goes on without slot 2"
    assert lab.status()["dnns"][0]["left_out"] == [2]
    epochs = lab.events("epoch-done")
    num_gpus = [len(epoch.facts.ranks.samples) for epoch in epochs]
    assert (len(num_gpus), set(num_gpus)) == (16, {2, 3})
    assert num_gpus == sorted(num_gpus, reverse=True)
    assert all(sum(epoch.facts.ranks.samples) == epoch.facts.num_trained for epoch in epochs)


def test_stops_and_kills_leave_a_gpu_left_out(lab):
    lab.configure(**HOPELESS, balance={"policy": "fitted"})
    running = lab.start()
    running.until(lambda: lab.events("gpu-left-out"), "slot left out")
    running.process.terminate()
    assert running.wait().code == 75
    running, known = lab.start(), len(lab.events("epoch-done"))
    running.until(lambda: len(lab.events("epoch-done")) > known, "epoch after the stop")
    running.kill_all()
    running.wait()
    done = lab.run()
    assert done.code == 0, done
    groups = [line.plan.groups[0].gpus for line in lab.events("round-started")]
    assert groups[0] == (0, 1, 2)
    assert groups[1:] == [(0, 1)] * (len(groups) - 1)
    assert len(lab.events("gpu-left-out")) == 1
    stopped = lab.outcome()
    alone = {**HOPELESS["backend"], "workers": [], "rates": {"a": {1: 40_000}}}  # it need not take its time
    lab.configure(**{**HOPELESS, "backend": alone}, slots={"per_node": 1}, output={"dir": "alone"})
    lab.out = lab.folder / "alone"
    done = lab.run()
    assert done.code == 0, done
    ended_alike(stopped, lab.outcome())


def test_on_other_hosts_a_dnn_gets_all_gpus_again(lab):
    """Those with the same numbers are others; one that is as slow is left out again."""
    lab.configure(**HOPELESS, balance={"policy": "fitted"})
    running = lab.start()
    running.until(lambda: lab.events("gpu-left-out"), "slot left out")
    running.process.terminate()
    assert running.wait().code == 75
    known = len(lab.events("round-started"))
    ledger = lab.out / "ledger.jsonl"
    (node,) = lab.events("run-started")[0].nodes
    ledger.write_text(ledger.read_text().replace(json.dumps(node.host), '"elsewhere"'))
    assert lab.events("run-started")[0].nodes == (replace(node, host="elsewhere"),)
    done = lab.run()
    assert done.code == 0, done
    assert lab.events("round-started")[known].plan.groups[0].gpus == (0, 1, 2)
    reported = "the hosts have changed: slots that were left out of a may be used again"
    assert reported in (lab.out / "logs" / "rank-000.log").read_text()
    assert len(lab.events("epoch-done")) == 16


def test_a_dnn_that_waits_gets_what_another_is_better_off_without(lab):
    """`b` is too slow for the flotilla of `a`, which has all three GPUs before it."""
    slow = {"name": "b", "model": "toys:toy", "batch_size": 24, "stop": {"max_epochs": 1}}
    rates = {"a": {1: 800, 2: 1500, 3: 2000}, "b": {1: 200, 2: 220, 3: 240}}
    lab.configure(
        dnns=[*UNLIKE["dnns"], slow],
        backend={**HOPELESS["backend"], "rates": rates},
        schedule={"delta": "1%", "paradigm": "local"},
        balance={"policy": "fitted"},
    )
    done = lab.run()
    assert done.code == 0, done
    rounds = [line.plan.gpus_of_dnn for line in lab.events("round-started")]
    assert rounds[:2] == [{"a": (0, 1, 2)}, {"a": (0, 1), "b": (2,)}]
    assert {name: row.state for name, row in lab.results().items()} == {"a": "done", "b": "done"}


BURSTS = '''
import time

from toys import Toy


class Burst(Toy):
    """Slot 2, of rank 4, takes a tenth of a second longer for steps 20 to 69 of its process."""

    def loss_and_gradient(self, parameters, x, y):
        if self._rank == 4 and 20 <= self._steps < 70:
            time.sleep(0.1)
        return super().loss_and_gradient(parameters, x, y)


def burst(input_shape, num_classes):
    return Burst("", 0, None, 0.0)
'''


def test_a_burst_of_other_load_that_is_over_with_the_pass_costs_no_gpu(lab):
    """In the burst the policy finds GPU 2 better left out, and takes it back well before the pass ends."""
    (lab.folder / "bursts.py").write_text(BURSTS)
    dnn = {"name": "a", "model": "bursts:burst", "batch_size": 24, "stop": {"max_epochs": 2}}
    lab.configure(
        dnns=[dnn],
        data={"dataset": "toys:points", "args": {"num_samples": 6000}, "validation_fraction": 0.2},
        backend={**HOPELESS["backend"], "workers": [{}, {}, {}]},
        balance={"policy": "fitted"},
    )
    done = lab.run()
    assert done.code == 0, done
    master = (lab.out / "logs" / "rank-002.log").read_text()
    assert "a would be faster without rank 2 of its group" in master
    first, second = lab.events("epoch-done")
    assert first.facts.balance.remove is None
    assert lab.events("gpu-left-out") == []
    assert [plan.plan.groups[0].gpus for plan in lab.events("round-started")] == [(0, 1, 2)]
    assert len(second.facts.ranks.samples) == 3
    assert "faster without" not in done.out


@pytest.mark.parametrize("policy", ["fitted", "lb-bsp-gpu"])
def test_gpus_that_are_alike_stay_together(lab, policy):
    """Also without `backend.workers`, where the rates are those of whole groups."""
    dnn = {"name": "a", "model": "toys:toy", "batch_size": 24, "stop": {"max_epochs": 3}}
    lab.configure(
        dnns=[dnn],
        data={"dataset": "toys:points", "args": {"num_samples": 1000}, "validation_fraction": 0.2},
        backend={"name": "emulated", "precision": "float64", "rates": {"a": {1: 400, 2: 780, 3: 1100}}},
        balance={"policy": policy},
    )
    done = lab.run()
    assert done.code == 0, done
    assert [epoch.facts.num_trained for epoch in lab.events("epoch-done")] == [800] * 3
    assert not lab.events("gpu-left-out")

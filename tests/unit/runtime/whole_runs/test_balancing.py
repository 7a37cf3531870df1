"""Groups of unequal slots: shares follow speed, learning does not change, and stragglers are left out."""

from __future__ import annotations

import copy
import importlib
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from hpcbal.telemetry.streams.timeline import read_timeline
from hpcbal.telemetry.views.results import read_results

NUM_SLOTS, FIRST_TRAINER = 3, 2
LATE_S, STEPS = 0.2, 3


def toy(name: str = "a", batch_size: int = 24, epochs: int = 16) -> dict[str, Any]:
    model = {"model": "in_process_toys:toy", "args": {"hook": "act"}}
    return {"name": name, **model, "batch_size": batch_size, "stop": {"max_epochs": epochs}}


def backend(*workers: dict[str, float], **rates: dict[int, float]) -> dict[str, Any]:
    given = rates or {"a": {1: 400, 2: 780, 3: 1100}}
    basis = {"name": "emulated", "precision": "float64", "collective": "mpi"}
    return {**basis, "rates": given, "workers": list(workers)}


def data(num_samples: int = 120, **more: Any) -> dict[str, Any]:
    return {"dataset": "in_process_toys:points", "args": {"num_samples": num_samples}, **more}


# The only DNN on three slots; the last one is three times as slow as the others.
UNLIKE = {
    "data": data(),
    "dnns": [toy()],
    "backend": backend({"speed": 1.5}, {"speed": 1.5}, {"speed": 0.5}),
}
# Slot 2 takes 0.1 s to start a step for which the two others take 0.03 s together.
HOPELESS = {**UNLIKE, "backend": backend({}, {}, {"launch_s": 0.1})}


def use(lab: Any, output: str = "out", num_slots: int = NUM_SLOTS, **sections: Any) -> None:
    lab.use(output=output, num_slots=num_slots, **copy.deepcopy(sections))


def with_epochs(sections: Mapping[str, Any], epochs: int) -> dict[str, Any]:
    return {**sections, "dnns": [{**dnn, "stop": {"max_epochs": epochs}} for dnn in sections["dnns"]]}


@pytest.fixture(autouse=True)
def calm(hooks: dict[str, Callable[[int], Any]]) -> None:
    """Unless a test wants something else, nothing happens in a step."""
    hooks["act"] = lambda step: None


def ended_alike(got: Any, wanted: Any) -> None:
    """Weights agree to what sums in another order leave of float64, over some 60 steps."""
    for name, (history, arrays) in wanted.items():
        assert got[name][0][-1][2] == pytest.approx(history[-1][2], rel=1e-9)
        assert got[name][1].keys() == arrays.keys()
        for key, array in arrays.items():
            assert got[name][1][key] == pytest.approx(array, rel=1e-9, abs=1e-9), key


def test_a_slow_slot_gets_less_and_the_weights_are_those_of_even_shares(lab: Any) -> None:
    outcomes, late_s, balances = {}, {}, {}
    for policy in ("even", "fitted", "lb-bsp-cpu"):
        use(lab, policy, **UNLIKE, balance={"policy": policy})
        assert lab.run() == 0
        outcomes[policy] = lab.outcome()
        ranks = [epoch.facts.ranks for epoch in lab.events("epoch-done")[-8:]]  # one may be hit by other load
        late_s[policy] = sum(max(each.compute_s) - min(each.compute_s) for each in ranks)
        last = lab.events("epoch-done")[-1]
        assert sum(last.facts.ranks.samples) == last.facts.num_trained
        balances[policy] = last.facts.balance
    for policy in ("fitted", "lb-bsp-cpu"):
        shares = balances[policy].shares
        assert sum(shares) == 24
        assert shares[2] < min(shares[:2])
        assert late_s[policy] < late_s["even"]
        ended_alike(outcomes[policy], outcomes["even"])


def test_a_limit_below_an_even_share_is_reported_once(lab: Any, capsys: Any) -> None:
    use(lab, **with_epochs(UNLIKE, 3), balance={"policy": "fitted", "max_samples_per_slot": 6})
    assert lab.run() == 0
    shown = capsys.readouterr().out
    assert shown.count("warning: balance.max_samples_per_slot: got 6, less than an even share") == 1
    assert "a (8 of 24 samples on 3 slots)" in shown
    assert lab.events("epoch-done")[-1].facts.balance.shares == (8, 8, 8)


def test_a_stop_inside_a_pass_changes_no_more_than_rounding(lab: Any) -> None:
    unlike = with_epochs(UNLIKE, 8)
    use(lab, **unlike, balance={"policy": "fitted"})
    lab.stop_at(4 * 4 * NUM_SLOTS + 5, rank=1)  # four steps an epoch
    assert {line.position.offset for line in lab.events("checkpoint-written")} - {120}, (
        "no stop was inside a pass"
    )
    assert lab.run() == 0
    stopped = lab.outcome()
    use(lab, "even", **unlike)
    assert lab.run() == 0
    ended_alike(stopped, lab.outcome())


def test_a_sleep_in_the_step_of_a_rank_is_its_compute(lab: Any, hooks: Any) -> None:
    rank = importlib.import_module("in_process_toys").RANK

    def be_late(step: int) -> None:
        if step and rank.number == FIRST_TRAINER + 1:
            time.sleep(LATE_S)

    hooks["act"] = be_late
    use(lab, data=data(), dnns=[toy(batch_size=32, epochs=2)], backend=backend())
    assert lab.run() == 0
    for epoch in lab.events("epoch-done"):
        assert (epoch.straggler.slot, epoch.straggler.why) == (1, "compute")
        ranks = epoch.facts.ranks
        assert ranks.compute_s[1] > STEPS * LATE_S
        assert min(ranks.collective_s[::2]) > ranks.collective_s[1]
    marks = [event for event in read_timeline(lab.out / "timeline.json.gz") if event["ph"] == "i"]
    assert [event["tid"] for event in marks] == [FIRST_TRAINER + 1 + 1] * 2
    assert all(str(event["name"]).endswith(": compute") for event in marks)


def test_alg_2_moves_samples_from_the_slowest_slot_to_the_fastest(lab: Any) -> None:
    """No sample is lost or doubled on the way, and the weights stay those of even shares."""
    workers = ({"speed": 1.0}, {"speed": 0.5}, {"speed": 2.0})
    sections = {
        "dnns": [toy(batch_size=60, epochs=6)],
        "backend": backend(*workers, a={1: 2000}),
        "data": data(750, validation_fraction=0.2),
        "schedule": {"delta": "15%", "profiling": {"max_batches": 2, "timed_batches": 1, "max_slots": 3}},
    }
    outcomes = {}
    for policy in ("even", "lb-bsp-gpu"):
        use(lab, policy, **sections, balance={"policy": policy})
        assert lab.run() == 0
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


def test_a_group_continues_without_a_slot_that_holds_it_up(lab: Any, capsys: Any) -> None:
    """tests/e2e/test_report_browser.py has such a run over MPI."""
    use(lab, **HOPELESS, balance={"policy": "lb-bsp-gpu"})
    assert lab.run() == 0
    (left_out,) = lab.events("slot-left-out")
    assert (left_out.dnn_id, left_out.slot) == ("a", 2)
    assert "a is faster without slot 2" in capsys.readouterr().out
    assert [plan.plan.groups[0].slots for plan in lab.events("round-started")] == [(0, 1, 2), (0, 1)]
    (regroup,) = [line for line in lab.events("leave-round") if line.reason == "regroup"]
    assert regroup.detail == "a goes on without slot 2"
    status = json.loads((lab.out / "status.json").read_text(encoding="utf-8"))
    assert status["dnns"][0]["left_out"] == [2]
    epochs = lab.events("epoch-done")
    num_slots = [len(epoch.facts.ranks.samples) for epoch in epochs]
    assert (len(num_slots), set(num_slots)) == (16, {2, 3})
    assert num_slots == sorted(num_slots, reverse=True)
    assert all(sum(epoch.facts.ranks.samples) == epoch.facts.num_trained for epoch in epochs)


def is_left_out(lab: Any) -> bool:
    return bool(lab.events("slot-left-out"))


def test_stops_and_deaths_leave_a_slot_left_out(lab: Any) -> None:
    use(lab, **HOPELESS, balance={"policy": "fitted"})
    lab.stop_when(lambda step: is_left_out(lab), rank=1)
    known = len(lab.events("epoch-done"))
    lab.kill_when(lambda: len(lab.events("epoch-done")) > known)
    assert lab.run() == 0
    groups = [line.plan.groups[0].slots for line in lab.events("round-started")]
    assert groups[0] == (0, 1, 2)
    assert groups[1:] == [(0, 1)] * (len(groups) - 1)
    assert len(groups) >= 3
    assert len(lab.events("slot-left-out")) == 1
    stopped = lab.outcome()
    use(lab, "alone", num_slots=1, **{**HOPELESS, "backend": backend(a={1: 40_000})})
    assert lab.run() == 0
    ended_alike(stopped, lab.outcome())


def test_on_other_hosts_a_dnn_gets_all_slots_again(lab: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Those with the same numbers are others; one that is as slow is left out again."""
    use(lab, **HOPELESS, balance={"policy": "fitted"})
    lab.stop_when(lambda step: is_left_out(lab), rank=1)
    known = len(lab.events("round-started"))
    ledger = lab.out / "ledger.jsonl"
    (node,) = lab.events("run-started")[0].nodes
    text = ledger.read_text(encoding="utf-8")
    text = re.sub(', "crc32": "[0-9a-f]{8}"', "", text)  # of lines that somebody has edited
    ledger.write_text(text.replace(f'"host": "{node.host}"', '"host": "elsewhere"'), encoding="utf-8")
    assert lab.events("run-started")[0].nodes == (replace(node, host="elsewhere"),)
    with caplog.at_level("INFO"):
        assert lab.run() == 0
    assert lab.events("round-started")[known].plan.groups[0].slots == (0, 1, 2)
    assert "the hosts have changed: slots that were left out of a may be used again" in caplog.text
    assert len(lab.events("epoch-done")) == 16


def test_a_dnn_that_waits_gets_what_another_is_better_off_without(lab: Any) -> None:
    """`b` is too slow for the flotilla of `a`, which has all three slots before it."""
    rates = {"a": {1: 800, 2: 1500, 3: 2000}, "b": {1: 200, 2: 220, 3: 240}}
    use(
        lab,
        data=data(),
        dnns=[toy(), toy("b", epochs=1)],
        backend=backend({}, {}, {"launch_s": 0.1}, **rates),
        schedule={"delta": "1%", "paradigm": "local"},
        balance={"policy": "fitted"},
    )
    assert lab.run() == 0
    rounds = [line.plan.slots_of_dnn for line in lab.events("round-started")]
    assert rounds[:2] == [{"a": (0, 1, 2)}, {"a": (0, 1), "b": (2,)}]
    states = {row.name: row.state for row in read_results(lab.out / "results.csv")}
    assert states == {"a": "done", "b": "done"}


def test_a_burst_of_other_load_that_is_over_with_the_pass_costs_no_slot(
    lab: Any, hooks: Any, capsys: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """In the burst the policy finds slot 2 better left out, and takes it back well before the pass ends."""
    rank = importlib.import_module("in_process_toys").RANK

    def burst(step: int) -> None:
        if 20 < step <= 70 and rank.number == FIRST_TRAINER + 2:
            time.sleep(0.1)

    hooks["act"] = burst
    more = data(6000, validation_fraction=0.2)
    use(lab, data=more, dnns=[toy(epochs=2)], backend=backend({}, {}, {}), balance={"policy": "fitted"})
    with caplog.at_level("INFO"):
        assert lab.run() == 0
    assert "a would be faster without rank 2 of its group" in caplog.text
    first, second = lab.events("epoch-done")
    assert first.facts.balance.remove is None
    assert lab.events("slot-left-out") == []
    assert [plan.plan.groups[0].slots for plan in lab.events("round-started")] == [(0, 1, 2)]
    assert len(second.facts.ranks.samples) == 3
    assert "faster without" not in capsys.readouterr().out


@pytest.mark.parametrize("policy", ["fitted", "lb-bsp-gpu"])
def test_slots_that_are_alike_stay_together(lab: Any, policy: str) -> None:
    """Also without `backend.workers`, where the rates are those of whole groups."""
    more = data(1000, validation_fraction=0.2)
    use(lab, data=more, dnns=[toy(epochs=3)], backend=backend(), balance={"policy": policy})
    assert lab.run() == 0
    assert [epoch.facts.num_trained for epoch in lab.events("epoch-done")] == [800] * 3
    assert not lab.events("slot-left-out")

"""On unlike slots passes take what their steps take, split by the policies of a real run."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbal.cli import main
from hpcbal.cluster.layout import Cluster
from hpcbal.control.progress import ScheduleSettings
from hpcbal.events.ensemble import EpochDone, GroupPlan
from hpcbal.events.members import DnnSpec, StopRule
from hpcbal.policies.batching import BATCHING
from hpcbal.policies.batching.even import Fixed
from hpcbal.policies.rates import RateTable
from hpcbal.simulator.balancing import Balancing
from hpcbal.simulator.pass_model import PassModel
from hpcbal.simulator.record import SimulatedRun
from hpcbal.simulator.run import simulate
from hpcbal.simulator.step_pace import STEADY_AFTER, StepPace

RATE = 100.0
PASSES = PassModel(num_train=1000, num_validation=90)
BATCH = 128
SETTINGS = ScheduleSettings(num_positions=PASSES.num_positions, profile=False)


@dataclass(frozen=True)
class Worker:
    speed: float = 1.0
    launch_s: float = 0.0
    floor_s: float = 0.0


FOUR = (Worker(2.0), Worker(), Worker(1.0, 0.05), Worker(0.5))
HOPELESS = (Worker(2.0), Worker(), Worker(), Worker(1.0, floor_s=30.0))


def run(
    policy: Any, workers: tuple[Worker, ...] = FOUR, num_epochs: int = 12, *, regroup: bool = True
) -> SimulatedRun:
    spec = DnnSpec("a", BATCH, StopRule(max_epochs=num_epochs))
    return simulate(
        [spec],
        Cluster.uniform(1, len(workers)),
        replace(SETTINGS, regroup=regroup),
        RateTable({"a": {1: RATE}}, len(workers)),
        PASSES,
        balancing=Balancing(workers, {"a": policy}),
        keep_events=True,
    )


def seconds_of_epochs(simulated: SimulatedRun) -> list[float]:
    return [timed.event.seconds for timed in simulated.events if isinstance(timed.event, EpochDone)]


def seconds_of_pass(sizes_of: dict[int, tuple[int, ...]], workers: tuple[Worker, ...] = FOUR) -> float:
    """A pass whose steps of so many samples are split so; seven full steps, one of 104 and 90 to validate."""
    total = 0.0
    for count, num_samples, speedup in ((7, BATCH, 1.0), (1, 104, 1.0), (1, 90, 3.0)):
        each = [
            max(w.floor_s, w.launch_s + n / (RATE * w.speed)) / speedup
            for w, n in zip(workers, sizes_of[num_samples], strict=True)
        ]
        total += count * max(each)
    return total


def test_even_shares_last_as_long_as_the_slowest_slot() -> None:
    expected = seconds_of_pass({128: (32,) * 4, 104: (26,) * 4, 90: (23, 23, 22, 22)})
    assert seconds_of_epochs(run(BATCHING["even"])) == pytest.approx([expected] * 12)


def test_fixed_shares_are_those_of_the_weights() -> None:
    sizes = {128: (57, 28, 28, 15), 104: (46, 23, 23, 12), 90: (40, 20, 20, 10)}
    policy = Fixed((57.0, 28.0, 28.0, 15.0))
    assert seconds_of_epochs(run(policy)) == pytest.approx([seconds_of_pass(sizes)] * 12)


@pytest.mark.parametrize("name", ["fitted", "lb-bsp-gpu", "lb-bsp-cpu"])
def test_a_policy_learns_in_the_first_passes_and_beats_even_shares(name: str) -> None:
    by_epoch = seconds_of_epochs(run(BATCHING[name], num_epochs=40))
    even = seconds_of_epochs(run(BATCHING["even"], num_epochs=1))[0]
    assert by_epoch[0] < even
    assert by_epoch[-1] < 0.75 * even
    assert min(by_epoch) <= by_epoch[-1] <= by_epoch[0]


def test_a_slot_that_is_not_worth_its_wait_is_left_out_unless_that_is_switched_off() -> None:
    simulated = run(BATCHING["fitted"], HOPELESS)
    assert [len(record.plan.groups[0].slots) for record in simulated.rounds] == [4, 3]
    assert 3 not in simulated.rounds[-1].plan.groups[0].slots
    kept = run(BATCHING["fitted"], HOPELESS, regroup=False)
    assert len(kept.rounds) == 1
    assert simulated.makespan_s < 0.4 * kept.makespan_s


@pytest.mark.parametrize("name", ["even", "fitted", "lb-bsp-gpu", "lb-bsp-cpu"])
def test_no_run_beats_the_lower_bound(name: str) -> None:
    simulated = run(BATCHING[name])
    assert 0.0 < simulated.lower_bound_s < simulated.makespan_s


@given(st.sampled_from(["fitted", "lb-bsp-cpu"]), st.lists(st.floats(0.25, 4.0), min_size=2, max_size=4))
@settings(deadline=None, max_examples=10)
def test_steady_passes_last_as_long_as_if_they_were_taken_step_by_step(
    name: str, speeds: list[float]
) -> None:
    policy, workers = BATCHING[name], tuple(map(Worker, speeds))
    group = GroupPlan("a", tuple(range(len(workers))))
    spec = DnnSpec("a", BATCH, StopRule(max_epochs=1))
    pace = StepPace({"a": spec}, RateTable({"a": {1: RATE}}, 4), PASSES, Balancing(workers, {"a": policy}))
    pace.begin_round(group)
    rates = [pace.pass_rate(group, 0) for _ in range(3 + STEADY_AFTER // 8)]
    assert rates[-1] == rates[-2]
    virtual = pace._groups[group]
    virtual.machine = replace_rules(virtual.machine)
    pace._steady.clear()
    assert pace.pass_rate(group, 0) == pytest.approx(rates[-1])


def replace_rules(machine: Any) -> Any:
    """The machine as it goes on after its group has been formed again."""
    return type(machine)(replace(machine.rules, warm_up_steps=0), machine.state, machine.num_quiet)


def test_a_profiling_run_measures_even_shares_on_its_own_slots() -> None:
    spec = DnnSpec("a", BATCH, StopRule(max_epochs=1))
    balancing = Balancing(FOUR, {"a": BATCHING["fitted"]})
    pace = StepPace({"a": spec}, RateTable({"a": {1: RATE}}, 4), PASSES, balancing)
    assert pace.profiled_rate(GroupPlan("a", (0,))) == pytest.approx(2 * RATE)
    assert pace.profiled_rate(GroupPlan("a", (0, 3))) == pytest.approx(RATE)


def test_the_verb_simulates_the_workers_of_a_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    config = str(Path(__file__).parents[3] / "configs" / "heterogeneous.yaml")

    def makespan_s(policy: str) -> float:
        assert main(["simulate", config, "--set", f"balance.policy={policy}", "--seeds", "1", "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)["rows"]
        return float(row["makespan_s"])

    # 8 passes of 11 steps of 128 samples and one of 30, and 360 to validate three times as fast.
    even = 8 * (11 * (0.004 + 32 / 200) + (0.004 + 7 / 200) + (2 * (0.004 + 32 / 200) + 0.004 + 26 / 200) / 3)
    assert makespan_s("even") == pytest.approx(even, rel=0.02)
    assert makespan_s("fitted") < 0.55 * makespan_s("even")

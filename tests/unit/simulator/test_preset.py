"""The ensembles that come with hpcbal, and the comparison of schedules on them."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest

from hpcbal.errors import InputError
from hpcbal.simulator.comparison import compare
from hpcbal.simulator.preset import EnsembleLaw, load_preset, preset_names
from hpcbal.simulator.scenario import Scenario, Workload, cluster_of

# [FLEET] Table 4, Table 3 and Sec. 6.1.
TOTALS_S = (55200.1, 30204.8, 24495.0, 21891.0, 18359.1, 15323.9, 13366.3, 11825.2)
BASELINE_S = (10372.2, 4178.9)


@pytest.fixture(scope="module")
def fleet() -> Scenario:
    return load_preset("fleet-summitdev")


def test_presets_are_found_by_name() -> None:
    assert preset_names() == ["fleet-summitdev"]
    with pytest.raises(InputError, match="preset: got 'fleet', allowed: fleet-summitdev"):
        load_preset("fleet")


def test_the_ensemble_is_the_papers(fleet: Scenario) -> None:
    same_rates = load_preset("fleet-summitdev", ["ensemble.rate_deviation=0"])
    lengths, rates = [], []
    for seed in range(20):
        workload = same_rates.draw(seed)
        rates = [workload.rates.rate(spec.dnn_id, 1) for spec in workload.specs]
        lengths += [
            30_606 * workload.epochs[spec.dnn_id] / rate
            for spec, rate in zip(workload.specs, rates, strict=True)
        ]
    assert len(rates) == 100
    assert (min(rates), max(rates)) == pytest.approx((21.0, 176.0))
    assert statistics.mean(lengths) == pytest.approx(BASELINE_S[0], rel=0.02)
    assert statistics.pstdev(lengths) == pytest.approx(BASELINE_S[1], rel=0.05)


def test_rates_scale_sublinearly_and_worse_across_nodes() -> None:
    shares = ["ensemble.kept_inside_node=0.995", "ensemble.kept_across_nodes=0.92"]
    scenario = load_preset("fleet-summitdev", shares)
    assert scenario.kept_per_added_node == pytest.approx(0.92 / 0.995)
    rates = scenario.draw(0).rates
    per_slot = [rates.rate("dnn-00", m) / m for m in range(1, 20)]
    assert per_slot == sorted(per_slot, reverse=True)
    assert per_slot[3] / per_slot[2] == pytest.approx(0.995)
    assert per_slot[4] / per_slot[3] == pytest.approx(0.92)
    assert per_slot[15] / per_slot[14] == pytest.approx(0.92)  # by Eq. 5


def test_a_seed_draws_epochs_and_rates(fleet: Scenario) -> None:
    first, again, other = fleet.draw(1), fleet.draw(1), fleet.draw(2)
    assert first.epochs == again.epochs != other.epochs
    assert first.rates == again.rates != other.rates


def test_without_deviation_the_rates_are_the_same_for_all_seeds() -> None:
    same_rates = load_preset("fleet-summitdev", ["ensemble.rate_deviation=0"])
    assert same_rates.draw(1).rates == same_rates.draw(2).rates


def test_rates_deviate_over_seeds_by_the_configured_share() -> None:
    changed = load_preset("fleet-summitdev", ["ensemble.rate_deviation=0.1"])
    plain = load_preset("fleet-summitdev", ["ensemble.rate_deviation=0"]).draw(0).rates.measured
    ratios = []
    for seed in range(20):
        for dnn_id, rates in changed.draw(seed).rates.measured.items():
            per_count = [rate / plain[dnn_id][count] for count, rate in rates.items()]
            assert per_count == pytest.approx([per_count[0]] * len(per_count))  # it scales as before
            ratios.append(math.log(per_count[0]))
    assert statistics.fmean(ratios) == pytest.approx(0.0, abs=0.01)
    assert statistics.pstdev(ratios) == pytest.approx(0.1, rel=0.05)


def test_makespans_spread_more_when_rates_vary() -> None:
    few = ["ensemble.num_dnns=12", "ensemble.deviation_epochs=0.01"]  # nothing else is drawn
    deviations = [
        compare(
            load_preset("fleet-summitdev", [*few, f"ensemble.rate_deviation={share}"]),
            [8],
            ["global"],
            range(6),
        )[0].makespan_deviation_s
        for share in (0.0, 0.02, 0.2)
    ]
    assert deviations[0] < 1e-6 < deviations[1] < deviations[2]


def test_a_preset_can_measure_its_rates_in_virtual_time() -> None:
    few = ["ensemble.num_dnns=8", "ensemble.rate_deviation=0"]
    known = load_preset("fleet-summitdev", few).run(8, "global", 0)
    measured = load_preset("fleet-summitdev", [*few, "schedule.profile=true"]).run(8, "global", 0)
    assert known.profiling_s == 0.0
    slowest_alone_s = 48 * 32 / 21.0  # 48 batches of 32 at 21 samples/s, in the first wave
    assert measured.profiling_s > slowest_alone_s
    assert measured.makespan_s == pytest.approx(known.makespan_s + measured.profiling_s)


def test_fleet_g_takes_about_as_long_as_in_the_paper_and_wins(fleet: Scenario) -> None:
    """bench/bench_simulator.py checks it over more seeds."""
    assert fleet.published is not None
    assert tuple(fleet.published.makespan_s.values()) == TOTALS_S
    rows = compare(fleet, (40, 160), ["global", "local", "homogeneous", "independent"], [0, 1])
    for row in rows:
        if row.published_s is not None:
            assert 0.75 < row.makespan_s / row.published_s < 1.25
    by_slots = {g: {r.paradigm: r for r in rows if r.slots == g} for g in (40, 160)}
    for found in by_slots.values():
        assert found["global"].speedup_vs_independent > 1.0
        assert found["global"].makespan_s < found["local"].makespan_s < found["homogeneous"].makespan_s
        assert found["global"].wait_s_per_slot == min(row.wait_s_per_slot for row in found.values())
    assert by_slots[40]["homogeneous"].speedup_vs_independent < 0.7


def test_overheads_are_the_sums_over_the_rounds(fleet: Scenario) -> None:
    row = compare(fleet, [160], ["global"], [0])[0]
    assert row.scheduling_s == pytest.approx(0.47 * row.rounds)
    assert row.checkpointing_s <= (34.0 + 0.47) * row.rounds
    assert len(row.flotillas) == row.rounds
    plain = row.to_dict()
    assert plain["checkpointing_percent"] == pytest.approx(100 * row.checkpointing_s / row.makespan_s)
    assert plain["over_published"] == pytest.approx(row.makespan_s / 11825.2)


def test_wrong_numbers_and_names_are_refused(fleet: Scenario) -> None:
    with pytest.raises(InputError, match="slots: got 0, allowed: 1 or more"):
        compare(fleet, [20, 0], ["global"], [0])
    with pytest.raises(InputError, match="paradigm: got 'best', allowed: global, local"):
        compare(fleet, [20], ["best"], [0])


def test_values_that_fit_no_distribution_are_refused() -> None:
    law = EnsembleLaw(10, 32, 21.0, 176.0, 1000, 300.0, 120.0, 15.0, 1.0, 0.99, 0.9, 0.0, 9, 0)
    assert len(law.single_slot_rates()) == 10
    with pytest.raises(InputError, match="no distribution between"):
        replace(law, mean_run_s=3000.0, deviation_run_s=1200.0).single_slot_rates()
    with pytest.raises(InputError, match=r"cannot result from epochs of 15\.0 with deviation 9\.0"):
        replace(law, deviation_epochs=9.0).single_slot_rates()


def test_numbers_of_a_preset_can_be_changed(fleet: Scenario) -> None:
    changed = load_preset("fleet-summitdev", ["schedule.alpha=0.9", "passes.ring_samples=0"])
    assert (changed.settings.alpha, changed.passes.ring_samples) == (0.9, 0)
    assert changed.draw(0).rates == fleet.draw(0).rates
    slower = load_preset("fleet-summitdev", ["ensemble.mean_epochs=13"])
    assert slower.draw(0).rates != fleet.draw(0).rates  # fewer epochs, more seconds each


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "schedule.alpa=0.9",
            "--set schedule.alpa=0.9: unknown key of the preset, allowed: machine.slots_per_node,",
        ),
        ("schedule", "--set schedule: unknown key"),
        ("schedule.alpha=high", "--set schedule.alpha=high: got 'high', allowed: a number"),
        ("schedule.profile=1", "--set schedule.profile=1: got '1', allowed: true or false"),
        ("schedule.alpha=2", "schedule.alpha: got 2.0, allowed: 0 to 1"),
        ("costs.load_s=-1", "costs.load_s: got -1.0"),
    ],
)
def test_wrong_changes_are_refused(override: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_preset("fleet-summitdev", [override])


def test_the_last_node_may_have_fewer_slots() -> None:
    assert [node.num_slots for node in cluster_of(10, 4).nodes] == [4, 4, 2]
    assert [node.num_slots for node in cluster_of(8, 4).nodes] == [4, 4]


def test_a_seed_that_changes_nothing_is_simulated_once(fleet: Scenario) -> None:
    whole = fleet.draw(0)
    specs = whole.specs[:6]
    few = Workload(specs, whole.rates, {spec.dnn_id: 2 for spec in specs})
    same = replace(fleet, draw=lambda seed: few)
    first, second = same.runs(2, "global", [3, 4])
    assert first is second
    assert first == same.run(2, "global", 4)
    assert same.runs(2, "auto", [3, 4]) == [same.run(2, "auto", seed) for seed in (3, 4)]
    one, other = same.runs(2, "homogeneous", [3, 4])
    assert one != other
    unlike = replace(fleet, draw=lambda seed: replace(few, epochs={spec.dnn_id: seed for spec in specs}))
    assert unlike.runs(2, "global", [1, 2]) == [unlike.run(2, "global", seed) for seed in (1, 2)]

"""The cost of a group's spread over nodes, and the worth of placement in virtual time."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence

import pytest

from hpcbal.cluster.layout import Cluster
from hpcbal.control import paradigms, profiling
from hpcbal.errors import InputError
from hpcbal.events.ensemble import RateMeasured
from hpcbal.policies.flotilla import Flotilla
from hpcbal.policies.placement import Placement, placement_score
from hpcbal.policies.rates import RateTable
from hpcbal.simulator.balancing import GroupRates, varied_rates
from hpcbal.simulator.preset import load_preset
from hpcbal.simulator.record import SimulatedRun

Sim = Callable[..., SimulatedRun]
TABLE = RateTable({"a": {1: 10.0, 2: 19.0, 4: 36.0, 6: 50.0}}, 4)


@pytest.mark.parametrize(
    ("slots", "rate"),
    [
        ((0, 1), 19.0),
        ((0, 4), 19.0 * 0.9),
        ((0, 1, 2, 3), 36.0),
        ((0, 4, 8, 9), 36.0 * 0.9**2),
        ((0, 1, 2, 3, 4, 5), 50.0),  # two nodes are the fewest for six
        ((0, 1, 4, 5, 8, 9), 50.0 * 0.9),
    ],
)
def test_each_node_beyond_the_fewest_costs_a_share_of_the_rate(slots: tuple[int, ...], rate: float) -> None:
    assert GroupRates(TABLE, Cluster.uniform(3, 4), 0.9).rate("a", slots) == pytest.approx(rate)
    assert GroupRates(TABLE, Cluster.uniform(3, 4)).rate("a", slots) == TABLE.rate("a", len(slots))


@pytest.mark.parametrize("share", [0.0, -1.0, 1.1, float("nan")])
def test_a_share_out_of_range_is_refused(share: float) -> None:
    with pytest.raises(InputError, match=r"kept_per_added_node: got .*, allowed: a number above 0"):
        GroupRates(TABLE, Cluster.uniform(1, 4), share)


@pytest.mark.parametrize("deviation", [-0.1, float("inf"), float("nan")])
def test_a_deviation_out_of_range_is_refused(deviation: float) -> None:
    with pytest.raises(InputError, match=r"rate_deviation: got .*, allowed: a number, 0 or more"):
        varied_rates(TABLE, deviation, 0)


def in_order(flotilla: Flotilla, cluster: Cluster, order: Sequence[int]) -> Placement:
    """The DNNs take the slots of `order` one after another."""
    slots: dict[str, tuple[int, ...]] = {}
    for dnn_id, count in zip(flotilla.dnn_ids, flotilla.num_slots, strict=True):
        slots[dnn_id], order = tuple(sorted(order[:count])), order[count:]
    return Placement(slots, placement_score(slots, cluster))


def scattered(
    flotilla: Flotilla, cluster: Cluster, had: Mapping[str, Sequence[int]] | None = None
) -> Placement:
    """Neighbours go to different nodes."""
    size = cluster.max_slots_per_node
    order = sorted(range(cluster.num_slots), key=lambda slot: (slot % size, slot // size))
    return in_order(flotilla, cluster, order)


def test_a_worse_placement_takes_longer(sim: Sim, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {name: {1: 50.0, 2: 100.0} for name in "ab"}

    def run() -> SimulatedRun:
        return sim(rates, {"a": 3, "b": 3}, slots=(2, 2), kept_per_added_node=0.8)

    together = run()
    assert together.makespan_s == pytest.approx(3 * 10.0)
    monkeypatch.setattr(paradigms, "assign_slots_staying", scattered)
    assert run().makespan_s == pytest.approx(3 * 10.0 / 0.8)


def test_profiling_measures_the_group_in_its_place(sim: Sim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "assign_slots", scattered)
    run = sim(
        {"a": {1: 100.0, 2: 190.0}},
        {"a": 1},
        slots=(2, 2),
        known=RateTable({}, 2),
        profile=True,
        max_profile_slots=2,
        kept_per_added_node=0.5,
        keep_events=True,
    )
    measured = [timed.event for timed in run.events if isinstance(timed.event, RateMeasured)]
    assert measured == [RateMeasured("a", 1, 100.0), RateMeasured("a", 2, 95.0)]


@pytest.mark.parametrize("num_slots", [20, 60])
def test_the_policy_places_better_than_chance_on_average(
    num_slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = load_preset("fleet-summitdev")
    policy_s = statistics.fmean(scenario.run(num_slots, "global", seed).makespan_s for seed in range(3))
    rng = random.Random(1)

    def by_chance(
        flotilla: Flotilla, cluster: Cluster, had: Mapping[str, Sequence[int]] | None = None
    ) -> Placement:
        return in_order(flotilla, cluster, rng.sample(range(cluster.num_slots), cluster.num_slots))

    monkeypatch.setattr(paradigms, "assign_slots_staying", by_chance)
    chance_s = statistics.fmean(scenario.run(num_slots, "global", seed).makespan_s for seed in range(3))
    assert policy_s < chance_s

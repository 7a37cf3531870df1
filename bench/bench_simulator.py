"""Time simulated runs per event, and compare the preset of the FLEET paper with the paper's totals.

Each row has one size and schedule: seconds for a whole run, events, and microseconds per event. What `handle`
does not take is the simulator's own part. Below them, from the same run, for each number of slots of the
preset:

- `over_published_M`, `speedup_M`: FLEET-G's total over that of [FLEET] Table 4, and its speed-up over the
  independent schedule, means over the seeds.
- `ahead_M`: share of the runs in which FLEET-G is faster than the independent schedule, over all pairs of a
  seed and an order in which rates are assigned to the DNNs.
- `random_over_policy_M`: FLEET-G's total with slots assigned at random over its total with the policy.

    python bench/bench_simulator.py --num-dnns 100 1000 --num-slots 160 4096 --json out.json

The JSON holds one flat object; `simulate_s` and `event_us` are those of 1,000 DNNs on 4,096 slots under the
global schedule.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence
from statistics import fmean
from unittest import mock

import numpy as np
from support.figures import parser_of, write_figures

from hpcbal.cluster.layout import Cluster
from hpcbal.control import paradigms
from hpcbal.control.ensemble import Ensemble
from hpcbal.control.paradigms import INDEPENDENT, PARADIGM_NAMES
from hpcbal.control.progress import ScheduleSettings
from hpcbal.events.ensemble import Event, Instruction
from hpcbal.events.members import DnnSpec, StopRule
from hpcbal.policies.flotilla import Delta, Flotilla
from hpcbal.policies.placement import Placement, placement_score
from hpcbal.policies.rates import RateTable, profiling_counts
from hpcbal.simulator.comparison import compare
from hpcbal.simulator.costs import Costs
from hpcbal.simulator.pass_model import PassModel
from hpcbal.simulator.preset import load_preset
from hpcbal.simulator.run import simulate
from hpcbal.simulator.scenario import cluster_of

SLOTS_PER_NODE = 4  # SummitDev, [FLEET] App. B.2; 4,096 slots are then whole nodes
DELTA = Delta(absolute=20.0)  # [FLEET] Sec. 4.3.2
CONTRACT_SIZE = (1000, 4096)
LIMIT_S = 10.0
PRESET = "fleet-summitdev"
MEAN_EPOCHS, DEVIATION_EPOCHS = 15.6, 1.56  # as in the preset
COSTS = Costs(build_s=17.0, load_s=17.0, checkpoint_s=17.0, scheduling_s=0.47)


def make_rates(num_dnns: int, num_slots: int, seed: int = 0) -> RateTable:
    """A random ensemble in the ranges of [FLEET] App. B: 21 to 176 samples/s on one slot, 2% noise."""
    rng = np.random.default_rng(seed)
    single = rng.uniform(21.0, 176.0, num_dnns)
    efficiency = rng.uniform(0.95, 0.995, num_dnns)
    measured: dict[str, dict[int, float]] = {}
    for i, count in itertools.product(
        range(num_dnns), profiling_counts(single.tolist(), SLOTS_PER_NODE, num_slots)
    ):
        noise = rng.uniform(0.98, 1.02)
        measured.setdefault(f"dnn{i:05d}", {})[count] = float(
            single[i] * count * efficiency[i] ** (count - 1) * noise
        )
    return RateTable(measured, SLOTS_PER_NODE)


class HandleTimer:
    """Adds up the time spent in `Ensemble.handle`."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._handle = Ensemble.handle

    def __call__(self, ensemble: Ensemble, event: Event) -> list[Instruction]:
        start = time.perf_counter()
        instructions = self._handle(ensemble, event)
        self.seconds += time.perf_counter() - start
        return instructions


def measure(num_dnns: int, num_slots: int, paradigm: str, repeats: int) -> dict[str, float]:
    """One row of the table; the fastest of `repeats`."""
    rates = make_rates(num_dnns, num_slots)
    drawn = np.random.default_rng(0).normal(MEAN_EPOCHS, DEVIATION_EPOCHS, num_dnns)
    specs = [
        DnnSpec(dnn_id, 32, StopRule(max_epochs=max(1, round(float(count)))))
        for dnn_id, count in zip(rates.measured, drawn, strict=True)
    ]
    passes = PassModel(30_606, ring_samples=2048)
    settings = ScheduleSettings(passes.num_positions, DELTA, profile=False, paradigm=paradigm)
    cluster = cluster_of(num_slots, SLOTS_PER_NODE)
    rows = []
    for _ in range(repeats):
        timer = HandleTimer()
        with mock.patch.object(
            Ensemble, "handle", lambda ensemble, event, timer=timer: timer(ensemble, event)
        ):
            start = time.perf_counter()
            run = simulate(specs, cluster, settings, rates, passes, costs=COSTS)
            seconds = time.perf_counter() - start
        rows.append(
            {
                "simulate_s": seconds,
                "num_events": run.num_events,
                "event_us": 1e6 * seconds / run.num_events,
                "handle_us": 1e6 * timer.seconds / run.num_events,
                "over_lower_bound": run.makespan_s / run.lower_bound_s,
            }
        )
    return min(rows, key=lambda row: row["simulate_s"])


def measure_preset(num_seeds: int) -> dict[str, float]:
    """The preset's FLEET-G over Table 4, and over the independent schedule, by number of slots."""
    scenario = load_preset(PRESET)
    rows = compare(scenario, scenario.slots, ["global"], range(num_seeds))
    figures: dict[str, float] = {}
    for row in rows:
        assert row.published_s is not None
        figures[f"over_published_{row.slots}"] = row.makespan_s / row.published_s
        figures[f"speedup_{row.slots}"] = row.speedup_vs_independent
    return figures


def measure_lead(num_orders: int, num_seeds: int) -> dict[str, float]:
    """Share of the runs in which FLEET-G is ahead of the independent schedule, by number of slots."""
    scenarios = [load_preset(PRESET, [f"ensemble.order_seed={order}"]) for order in range(num_orders)]
    return {
        f"ahead_{num_slots}": fmean(
            scenario.run(num_slots, "global", seed).makespan_s
            < scenario.run(num_slots, INDEPENDENT, seed).makespan_s
            for scenario in scenarios
            for seed in range(num_seeds)
        )
        for num_slots in scenarios[0].slots
    }


def measure_random_placement(num_seeds: int) -> dict[str, float]:
    """FLEET-G with slots assigned at random over FLEET-G with the policy, by number of slots."""
    scenario = load_preset(PRESET)
    rng = random.Random(0)

    def by_chance(flotilla: Flotilla, cluster: Cluster, had: object) -> Placement:
        slots, left = {}, rng.sample(range(cluster.num_slots), cluster.num_slots)
        for dnn_id, count in zip(flotilla.dnn_ids, flotilla.num_slots, strict=True):
            slots[dnn_id], left = tuple(sorted(left[:count])), left[count:]
        return Placement(slots, placement_score(slots, cluster))

    def mean_s(num_slots: int) -> float:
        return fmean(scenario.run(num_slots, "global", seed).makespan_s for seed in range(num_seeds))

    figures = {}
    for num_slots in scenario.slots:
        with mock.patch.object(paradigms, "assign_slots_staying", by_chance):
            random_s = mean_s(num_slots)
        figures[f"random_over_policy_{num_slots}"] = random_s / mean_s(num_slots)
    return figures


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--num-dnns", type=int, nargs="+", default=[100], metavar="N")
    parser.add_argument("--num-slots", type=int, nargs="+", default=[160], metavar="M")
    parser.add_argument("--repeats", type=int, default=2, help="measurements; the minimum counts")
    parser.add_argument("--seeds", type=int, default=5, help="seeds over which the preset is averaged")
    parser.add_argument("--orders", type=int, default=4, help="orders of the rates, for `ahead_M`")
    args = parser.parse_args(argv)
    sizes = list(itertools.product(args.num_dnns, args.num_slots))
    if CONTRACT_SIZE not in sizes:
        sizes.append(CONTRACT_SIZE)
    print("num_dnns  num_slots  schedule     simulate_s  num_events  event_us  handle_us  over_lower_bound")
    results: dict[str, object] = {}
    for (num_dnns, num_slots), paradigm in itertools.product(sizes, PARADIGM_NAMES):
        row = measure(num_dnns, num_slots, paradigm, args.repeats)
        print(
            f"{num_dnns:8d}  {num_slots:8d}  {paradigm:11s}  {row['simulate_s']:10.2f}  "
            f"{row['num_events']:10.0f}  {row['event_us']:8.0f}  {row['handle_us']:9.0f}  "
            f"{row['over_lower_bound']:16.2f}",
            flush=True,
        )
        if (num_dnns, num_slots) == CONTRACT_SIZE and paradigm == "global":
            results |= {**row, "of_limit": row["simulate_s"] / LIMIT_S}
    for preset in (
        measure_preset(args.seeds),
        measure_lead(args.orders, args.seeds),
        measure_random_placement(args.seeds),
    ):
        shown = "  ".join(f"{key} {value:.3f}" for key, value in preset.items())
        print(f"{PRESET}, {args.seeds} seeds: {shown}", flush=True)
        results |= preset
    write_figures(args.json, results)


if __name__ == "__main__":
    main()

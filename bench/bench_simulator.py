"""Time simulated runs per event, and compare the preset of the FLEET paper with the paper's totals.

One row per size and schedule: seconds for a whole run, events, and microseconds per event, of which the rest
that is not `handle` is the simulator's own. Below, in the same run, FLEET-G's total over that of [FLEET]
Table 4 and its speed-up over the independent schedule, for each number of GPUs.

    python bench/bench_simulator.py --num-dnns 100 1000 --num-gpus 160 4096 --json out.json

The JSON holds one flat object; `simulate_s` and `event_us` are those of 1,000 DNNs on 4,096 GPUs under the
global schedule.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import numpy as np
from bench_flotilla import CONTRACT_SIZE, DELTA, GPUS_PER_NODE, make_rates
from provenance import provenance

from hpcbal.control import PARADIGM_NAMES, DnnSpec, Ensemble, Event, Instruction, ScheduleSettings, StopRule
from hpcbal.simulator import Costs, PassModel, cluster_of, compare, load_preset, simulate

LIMIT_S = 10.0
PRESET = "fleet-summitdev"
MEAN_EPOCHS, DEVIATION_EPOCHS = 15.6, 1.56  # as in the preset
COSTS = Costs(build_s=17.0, load_s=17.0, checkpoint_s=17.0, scheduling_s=0.47)


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


def measure(num_dnns: int, num_gpus: int, paradigm: str, repeats: int) -> dict[str, float]:
    """One row of the table; the fastest of `repeats`."""
    rates = make_rates(num_dnns, num_gpus)
    drawn = np.random.default_rng(0).normal(MEAN_EPOCHS, DEVIATION_EPOCHS, num_dnns)
    specs = [
        DnnSpec(dnn_id, 32, StopRule(max_epochs=max(1, round(float(count)))))
        for dnn_id, count in zip(rates.measured, drawn, strict=True)
    ]
    passes = PassModel(30_606, ring_samples=2048)
    settings = ScheduleSettings(passes.num_positions, DELTA, profile=False, paradigm=paradigm)
    cluster = cluster_of(num_gpus, GPUS_PER_NODE)
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
    """FLEET-G of the preset against Table 4, and over the independent schedule, by number of GPUs."""
    scenario = load_preset(PRESET)
    rows = compare(scenario, scenario.gpus, ["global"], range(num_seeds))
    figures: dict[str, float] = {}
    for row in rows:
        assert row.published_s is not None
        figures[f"over_published_{row.gpus}"] = row.makespan_s / row.published_s
        figures[f"speedup_{row.gpus}"] = row.speedup_vs_independent
    return figures


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num-dnns", type=int, nargs="+", default=[100], metavar="N")
    parser.add_argument("--num-gpus", type=int, nargs="+", default=[160], metavar="M")
    parser.add_argument("--repeats", type=int, default=2, help="each time is the least of so many")
    parser.add_argument("--seeds", type=int, default=5, help="over which the preset is averaged")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    sizes = list(itertools.product(args.num_dnns, args.num_gpus))
    if CONTRACT_SIZE not in sizes:
        sizes.append(CONTRACT_SIZE)
    print("num_dnns  num_gpus  schedule     simulate_s  num_events  event_us  handle_us  over_lower_bound")
    results: dict[str, object] = {}
    for (num_dnns, num_gpus), paradigm in itertools.product(sizes, PARADIGM_NAMES):
        row = measure(num_dnns, num_gpus, paradigm, args.repeats)
        print(
            f"{num_dnns:8d}  {num_gpus:8d}  {paradigm:11s}  {row['simulate_s']:10.2f}  "
            f"{row['num_events']:10.0f}  {row['event_us']:8.0f}  {row['handle_us']:9.0f}  "
            f"{row['over_lower_bound']:16.2f}",
            flush=True,
        )
        if (num_dnns, num_gpus) == CONTRACT_SIZE and paradigm == "global":
            results |= {**row, "of_limit": row["simulate_s"] / LIMIT_S}
    preset = measure_preset(args.seeds)
    print(
        f"{PRESET}, {args.seeds} seeds: " + "  ".join(f"{key} {value:.3f}" for key, value in preset.items())
    )
    results |= preset
    if args.json:
        args.json.write_text(json.dumps(results | provenance(), indent=2) + "\n")


if __name__ == "__main__":
    main()

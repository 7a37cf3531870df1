"""Every network at its own pace, against rounds, the lower bound, and the best of the other settings.

Simulated, with lengths that nobody knows before:

- the ensemble of the FLEET paper on 20 to 160 GPUs, with its 34 s for each group that changes. Each row has
  the makespan over the lower bound for `independent`, FLEET-L, FLEET-G and `elastic`, means over the seeds.
- the 26 models of Gavel on 8, 16 and 32 GPUs, with their public rates on one V100, the scaling that is
  assumed where only one slot was measured, and equally many epochs of equally many samples. Beside the bound
  stands the best allotment: the shortest time in which whole slots can do the work at that scaling.

Real runs, of emulated accelerators:

- 24 DNNs of the FLEET ensemble on 16 accelerators, against their simulation.
- 7 unlike networks, 1 to 8 times apart in speed, on 4 accelerators: elastic against each other paradigm and
  the setting that is best in the simulation.

    python bench/bench_elastic.py --json out.json

The JSON holds one flat object:

- `elastic_over_bound_mean` (at most 1.13), `elastic_over_bound_max` (at most 1.22): over the eight sizes,
- `elastic_over_global_max` (at most 1.0): over FLEET-G,
- `gavel_over_bound_max` (at most 1.15), `gavel_over_allotment_max`: over the bound, and over the allotment,
- `elastic_sim_error` (at most 0.05): |simulated / real - 1|,
- `elastic_real_over_best` (at most 0.9): wall time over that of the best other setting, found afterwards.

Takes about 10 minutes on two cores.
"""

from __future__ import annotations

import json
import re
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import bench_auto
import bench_fleet_real
import numpy as np
from support.figures import parser_of, write_figures

from hpcbal.control.progress import ScheduleSettings
from hpcbal.events.ensemble import Schedule
from hpcbal.events.members import DnnSpec, StopRule
from hpcbal.policies.rates import RateTable
from hpcbal.simulator.choosing import ASSUMED_COSTS
from hpcbal.simulator.pass_model import PassModel
from hpcbal.simulator.preset import load_preset
from hpcbal.simulator.run import simulate
from hpcbal.simulator.scenario import cluster_of

PRESET = "fleet-summitdev"
RIVALS = ("independent", "local", "global", "elastic")
LIMITS = {
    "elastic_over_bound_mean": 1.13,
    "elastic_over_bound_max": 1.22,
    "elastic_over_global_max": 1.0,
    "gavel_over_bound_max": 1.15,
    "elastic_sim_error": 0.05,
    "elastic_real_over_best": 0.9,
}

GAVEL = Path(__file__).parent / "data" / "gavel_v100_rates.json"
GAVEL_SLOTS, GAVEL_NODE = (8, 16, 32), 8
GAVEL_EPOCHS, GAVEL_SAMPLES = 20, 10_000

UNLIKE = (800.0, 560.0, 400.0, 280.0, 200.0, 140.0, 100.0)
"""Samples/s of the seven networks on one slot."""
UNLIKE_SLOTS, UNLIKE_EPOCHS, UNLIKE_KEPT = 4, 12, 0.95
UNLIKE_PASSES = PassModel(num_train=480, num_validation=48, ring_samples=256)


def paper(seeds: Sequence[int]) -> dict[str, float]:
    """The ensemble of the FLEET paper."""
    scenario = load_preset(PRESET)
    over: dict[str, list[float]] = {name: [] for name in RIVALS}
    over_global = []
    print(f"{'GPUs':>5}" + "".join(f"{name:>13}" for name in RIVALS) + "   makespan over the bound")
    for num_slots in scenario.slots:
        makespans = {}
        for name in RIVALS:
            runs = scenario.runs(num_slots, name, seeds)
            makespans[name] = [run.makespan_s for run in runs]
            over[name].append(statistics.fmean(run.makespan_s / run.lower_bound_s for run in runs))
        pairs = zip(makespans["elastic"], makespans["global"], strict=True)
        over_global.append(max(elastic / fleet for elastic, fleet in pairs))
        print(f"{num_slots:>5}" + "".join(f"{over[name][-1]:>13.3f}" for name in RIVALS), flush=True)
    result = {
        "elastic_over_bound_mean": statistics.fmean(over["elastic"]),
        "elastic_over_bound_max": max(over["elastic"]),
        "elastic_over_global_max": max(over_global),
        "elastic_over_global_mean": statistics.fmean(over_global),
    }
    return result | {f"{name}_over_bound_mean": statistics.fmean(over[name]) for name in RIVALS}


def gavel() -> dict[str, float]:
    """The models of Gavel, each with the samples/s of its name's batch size."""
    steps = json.loads(GAVEL.read_text(encoding="utf-8"))["steps_per_s"]
    single = {name: row["1"] * _batch_size(name) for name, row in steps.items()}
    rates = RateTable({name: {1: rate} for name, rate in single.items()}, GAVEL_NODE)
    specs = [DnnSpec(name, 64, StopRule(max_epochs=GAVEL_EPOCHS)) for name in single]
    epochs = dict.fromkeys(single, GAVEL_EPOCHS)
    passes = PassModel(num_train=GAVEL_SAMPLES)
    over_bound, over_allotment = [], []
    print(f"{'GPUs':>5}{'global':>13}{'elastic':>13}{'allotment':>13}   Gavel's models, over the bound")
    for num_slots in GAVEL_SLOTS:
        found = {}
        for name in ("global", "elastic"):
            settings = ScheduleSettings(passes.num_positions, paradigm=name, profile=False)
            settings = replace(settings, checkpoint_every_pass=False)
            cluster = cluster_of(num_slots, GAVEL_NODE)
            found[name] = simulate(
                specs, cluster, settings, rates, passes, epochs=epochs, costs=ASSUMED_COSTS
            )
        bound = found["elastic"].lower_bound_s
        allotment = _best_allotment_s(rates.matrix(list(single), num_slots), num_slots)
        over_bound.append(found["elastic"].makespan_s / bound)
        over_allotment.append(found["elastic"].makespan_s / allotment)
        print(
            f"{num_slots:>5}{found['global'].makespan_s / bound:>13.3f}{over_bound[-1]:>13.3f}"
            f"{allotment / bound:>13.3f}",
            flush=True,
        )
    return {"gavel_over_bound_max": max(over_bound), "gavel_over_allotment_max": max(over_allotment)}


def _batch_size(name: str) -> int:
    found = re.search(r"batch size (\d+)", name)
    return int(found[1]) if found else 1


def _best_allotment_s(rates: Any, num_slots: int) -> float:
    """The least time in which the slots can do all work, if each model keeps one number of slots."""
    seconds = GAVEL_EPOCHS * GAVEL_SAMPLES / rates
    work = seconds * np.arange(1, num_slots + 1)
    low, high = 0.0, float(seconds.min(axis=1).max() + work.min(axis=1).sum())
    for _ in range(60):
        middle = 0.5 * (low + high)
        in_time = np.where(seconds <= middle, work, np.inf).min(axis=1).sum()
        low, high = (low, middle) if in_time <= num_slots * middle else (middle, high)
    return high


def sixteen(folder: Path) -> dict[str, float]:
    """24 DNNs on 16 emulated accelerators, for real and simulated."""
    workload = bench_fleet_real.scaled(24, 0, 40.0)
    config = bench_fleet_real.config_of(workload, "elastic", folder / "out")
    real_s = bench_fleet_real.run_for_real(config, folder)
    run = bench_fleet_real.simulated(workload, "elastic")
    print(
        f"16 accelerators: {real_s:.1f} s, simulated {run.makespan_s:.1f} s, bound {run.lower_bound_s:.1f} s"
    )
    return {"elastic_sim_error": abs(run.makespan_s / real_s - 1.0), "sixteen_real_s": real_s}


def unlike() -> bench_auto.Ensemble:
    """Seven networks."""
    names = [f"net-{i}" for i in range(len(UNLIKE))]
    table = {
        name: {m: rate * m * UNLIKE_KEPT ** (m - 1) for m in range(1, UNLIKE_SLOTS + 1)}
        for name, rate in zip(names, UNLIKE, strict=True)
    }
    specs = tuple(DnnSpec(name, 32, StopRule(max_epochs=UNLIKE_EPOCHS)) for name in names)
    return bench_auto.Ensemble(
        specs, RateTable(table, UNLIKE_SLOTS), UNLIKE_SLOTS, UNLIKE_SLOTS, UNLIKE_PASSES
    )


def seven(repeats: int) -> dict[str, float]:
    """The wall time of elastic over the best of the others, from the first group to the end."""
    ensemble = unlike()
    simulated = bench_auto.fixed_s(ensemble)
    rounds = {schedule: s for schedule, s in simulated.items() if schedule.paradigm != "elastic"}
    best: dict[str, Schedule] = {}
    for schedule in sorted(rounds, key=lambda schedule: rounds[schedule]):
        best.setdefault(schedule.paradigm, schedule)
    elastic_s, others_s = simulated[Schedule("elastic")], min(rounds.values())
    print(f"7 networks, simulated: elastic {elastic_s:.1f} s, {next(iter(best.values()))} {others_s:.1f} s")
    rivals = [Schedule("elastic"), *best.values()]
    runs = [[bench_auto.real_s(ensemble, rival) for rival in rivals] for _ in range(repeats)]
    real = dict(zip(rivals, map(min, zip(*runs, strict=True)), strict=True))
    for rival, seconds in real.items():
        print(f"7 networks on 4 accelerators: {seconds:6.1f} s with {rival}", flush=True)
    others = min(seconds for rival, seconds in real.items() if rival.paradigm != "elastic")
    return {"elastic_real_over_best": real[Schedule("elastic")] / others}


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="of the ensemble of the FLEET paper")
    parser.add_argument("--repeat", type=int, default=2, help="real runs of each setting; the fastest counts")
    args = parser.parse_args(argv)
    result: dict[str, Any] = paper(range(args.seeds)) | gavel()
    with tempfile.TemporaryDirectory() as folder:
        result |= sixteen(Path(folder))
    result |= seven(args.repeat)
    _show(result)
    write_figures(args.json, result)


def _show(result: Mapping[str, Any]) -> None:
    for key, limit in LIMITS.items():
        print(f"{key} {result[key]:.3f} (at most {limit})")


if __name__ == "__main__":
    main()

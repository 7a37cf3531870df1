"""Balancing on unlike emulated slots: compare real runs with their simulations.

One DNN trains on four unlike workers, as in configs/heterogeneous.yaml, and on four workers one of which is
so slow that policies may leave it out. Each policy trains in a real run: MPI ranks, the shared ring,
gradients summed in a trainer group, decisions in the background. Only the computing times of the workers are
emulated. Each run is simulated from its configuration alone; nothing is fitted to the real run.

    python bench/bench_balance_sim.py --json out.json

takes 5 minutes. The time of a run is the sum of its epochs. Starting, profiling and saving do not count,
because the simulator knows no costs here. The JSON holds one flat object: `balance_sim_error_max` is the
largest |simulated / real - 1| (at most 0.05); `<group>_<policy>_real_s`, `_simulated_s` and `_error` describe
each run.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from support.figures import parser_of, write_figures
from support.starting import train

from hpcbal.config import load_ensemble
from hpcbal.events.ensemble import EpochDone
from hpcbal.planning.scenario import scenario_of_config
from hpcbal.simulator.run import simulate
from hpcbal.simulator.scenario import cluster_of
from hpcbal.telemetry.ledger.file import lines_of

ERROR_ALLOWED = 0.05
POLICIES = ("even", "fixed", "fitted", "lb-bsp-gpu", "lb-bsp-cpu")
NUM_SAMPLES = 1797  # of the digits
RATE = 120.0  # samples/s; steps are long compared with messages
GROUPS: Mapping[str, tuple[Sequence[Mapping[str, float]], Sequence[float]]] = {
    "unlike": (
        (
            {"speed": 2.0, "launch_s": 0.004},
            {"speed": 1.0, "launch_s": 0.004},
            {"speed": 1.0, "launch_s": 0.010},
            {"speed": 0.5, "launch_s": 0.004},
        ),
        (4, 2, 2, 1),
    ),
    "hopeless": (
        ({"speed": 2.0}, {"speed": 1.5, "floor_s": 0.06}, {"speed": 1.0}, {"speed": 0.5, "floor_s": 0.25}),
        (4, 3, 2, 1),
    ),
}
"""For each group: its workers, and weights for `fixed`."""


def config_of(group: str, policy: str, num_epochs: int, output: Path) -> dict[str, Any]:
    """The run's configuration."""
    workers, shares = GROUPS[group]
    return {
        "name": f"{group}-{policy}",
        "seed": 3,
        "data": {"dataset": "hpcbal.data:digits", "validation_fraction": 0.2},
        "dnns": [
            {
                "name": "softmax",
                "model": "hpcbal.models:softmax",
                "batch_size": 128,
                "optimizer": {"name": "sgd", "learning_rate": 0.001},
                "stop": {"max_epochs": num_epochs},
            }
        ],
        "backend": {
            "name": "emulated",
            "rates": {"softmax": {1: RATE}},
            "workers": [dict(worker) for worker in workers],
        },
        "balance": {"policy": policy, **({"shares": list(shares)} if policy == "fixed" else {})},
        "schedule": {"profiling": {"max_batches": 2, "timed_batches": 1, "max_slots": 4}},
        "slots": {"per_node": len(workers), "preprocessors_per_node": 1},
        "output": {"dir": str(output)},
    }


def run_for_real(config: dict[str, Any], folder: Path) -> float:
    """Start the run with all its ranks; returns the seconds of its epochs."""
    return sum(line.seconds for line in lines_of(train(config, folder), EpochDone))


def simulated(config: dict[str, Any], folder: Path) -> float:
    """Seconds of the epochs of the same run in virtual time."""
    path = folder / "simulated.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    scenario = scenario_of_config(load_ensemble(path), path, num_samples=NUM_SAMPLES)
    (num_slots,), workload = scenario.slots, scenario.draw(0)
    run = simulate(
        workload.specs,
        cluster_of(num_slots, scenario.slots_per_node),
        scenario.settings,
        workload.rates,
        scenario.passes,
        epochs=workload.epochs,
        balancing=scenario.balancing,
        keep_events=True,
    )
    return sum(timed.event.seconds for timed in run.events if isinstance(timed.event, EpochDone))


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--epochs", type=int, default=6)
    args = parser.parse_args(argv)
    result: dict[str, Any] = {"load_before": os.getloadavg()[0], "num_epochs": args.epochs}
    errors = []
    print(f"{'group':<9} {'policy':<11} {'real':>8} {'simulated':>10} {'error':>7}")
    for group in args.groups:
        for policy in args.policies:
            with tempfile.TemporaryDirectory() as folder:
                config = config_of(group, policy, args.epochs, Path(folder, "out"))
                virtual_s = simulated(config, Path(folder))
                real_s = run_for_real(config, Path(folder))
            error = virtual_s / real_s - 1.0
            errors.append(abs(error))
            print(f"{group:<9} {policy:<11} {real_s:>6.1f} s {virtual_s:>8.1f} s {error:>+7.1%}", flush=True)
            key = f"{group}_{policy}"
            result |= {f"{key}_real_s": real_s, f"{key}_simulated_s": virtual_s, f"{key}_error": abs(error)}
    result["balance_sim_error_max"] = max(errors)
    print(f"balance_sim_error_max {max(errors):.3f} (at most {ERROR_ALLOWED})")
    write_figures(args.json, result)


if __name__ == "__main__":
    main()

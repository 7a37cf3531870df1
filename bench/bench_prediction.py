"""Predict the wall time of the quick start's ensemble with TensorFlow, and compare with the run.

    python bench/bench_prediction.py --json out.json

Networks, data and stop rules are those of configs/quickstart.yaml; a network has up to two slots. First
`hpcbal profile` measures the rates on one slot and on two, and the time to start each network; then
`hpcbal run` trains. The prediction uses profile.json and, because stop rules cannot be foreseen, the number
of epochs after which each network converged. It uses nothing else from the run.

`prediction_error`: |predicted / actual - 1| of the run's wall time (at most 0.15). The peer is a guess
without the schedule: the work of all networks, divided by the slots. The bench also shows the run's own
prediction at its start, when it had to assume max_epochs for every network.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.provenance import provenance
from support.starting import environment

from hpcbal.cluster.layout import Cluster
from hpcbal.config import EnsembleConfig, load_ensemble
from hpcbal.config.scheduling import settings_of, specs_of
from hpcbal.policies import RateTable, profile_by_name, starts_by_name
from hpcbal.simulator import Costs, PassModel, SimulatedRun, simulate
from hpcbal.telemetry import read_ledger, read_results
from hpcbal.telemetry.ledger import Entry, PredictionLine, RunStartedLine, lines_of

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "configs" / "quickstart.yaml"
ERROR_ALLOWED = 0.15


def overrides(num_slots: int, folder: Path) -> list[str]:
    """Overrides of the quick start's configuration."""
    values = {
        "slots.per_node": num_slots,
        "schedule.profiling.max_slots": 2,
        "schedule.max_slots_per_dnn": 2,
        "schedule.profiling.max_batches": 30,
        "schedule.profiling.timed_batches": 20,
        "output.dir": folder / "out",
    }
    return [f"--set={key}={value}" for key, value in values.items()]


def run_for_real(num_slots: int, folder: Path) -> list[Entry]:
    """Profile, then train; returns the ledger of the training."""
    for verb in ("profile", "run"):
        command = [sys.executable, "-m", "hpcbal", verb, str(CONFIG), *overrides(num_slots, folder)]
        subprocess.run(command, check=True, env=environment(), stdout=subprocess.DEVNULL)
    ledger = read_ledger(folder / "out" / "ledger.jsonl")
    last_start = max(i for i, entry in enumerate(ledger) if isinstance(entry.line, RunStartedLine))
    return ledger[last_start:]


def predict(config: EnsembleConfig, folder: Path, num_slots: int) -> SimulatedRun:
    """The run in virtual time, from profile.json and the epochs of the results."""
    names = [dnn.name for dnn in config.dnns]
    profile: Mapping[str, Any] = json.loads((folder / "out" / "profile.json").read_text(encoding="utf-8"))
    rates: RateTable = profile_by_name(profile, names, num_slots)
    epochs = {row.name: row.epochs for row in read_results(folder / "out" / "results.csv")}
    num_validation = round(1797 * config.data.validation_fraction)
    num_train = 1797 - num_validation - round(1797 * config.data.test_fraction)
    passes = PassModel(num_train, num_validation, ring_samples=1797)
    return simulate(
        specs_of(config),
        Cluster.uniform(1, num_slots),
        replace(settings_of(config, passes.num_positions), profile=False),
        rates,
        passes,
        epochs=epochs,
        costs=Costs(start_s=starts_by_name(profile, names)),
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slots", type=int, default=4, help="trainers (default: 4)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    load_before = os.getloadavg()[0]
    config = load_ensemble(CONFIG, [], check_imports=False)
    with tempfile.TemporaryDirectory() as name:
        ledger = run_for_real(args.slots, Path(name))
        run = predict(config, Path(name), args.slots)
    actual_s = ledger[-1].unix_s - ledger[0].unix_s
    at_start = next((line.wall_time_s for line in lines_of(ledger, PredictionLine)), None)
    one_by_one_s = sum(dnn.slot_seconds for dnn in run.dnns) / args.slots
    result = {
        "actual_s": actual_s,
        "predicted_s": run.makespan_s,
        "prediction_error": abs(run.makespan_s / actual_s - 1.0),
        "shared_out_error": abs(one_by_one_s / actual_s - 1.0),
        "num_rounds": len(run.rounds),
        "num_slots": args.slots,
        "load_before": load_before,
    }
    print(f"actual                      {actual_s:7.1f} s")
    print(f"predicted from profile.json {run.makespan_s:7.1f} s  ({run.makespan_s / actual_s - 1.0:+.1%})")
    print(f"work shared out             {one_by_one_s:7.1f} s  ({one_by_one_s / actual_s - 1.0:+.1%})")
    if at_start is not None:
        result["predicted_at_start_s"] = at_start
        print(f"predicted at the start      {at_start:7.1f} s  (every network to its max_epochs)")
    print(f"prediction_error {result['prediction_error']:.3f} (at most {ERROR_ALLOWED})")
    if args.json:
        args.json.write_text(json.dumps(result | provenance(), indent=2) + "\n")


if __name__ == "__main__":
    main()

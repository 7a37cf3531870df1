"""Parts of data with two classes each, on workers of unlike speed: do they cost accuracy?

The check of [LBBSP] footnote 5, on Fashion-MNIST instead of CIFAR-10 and with a small CNN instead of
ResNet-32. Five TensorFlow workers take 64, 96, 128, 160 and 192 samples of every step; each of them starts
with two of the ten classes. Four runs of `hpcbal run` have the same network, steps and seed:

- iid: all workers draw from the shared stream, as if every part were like the whole;
- noniid: each worker has a part, and samples move to workers that are more than 2 traversals ahead;
- unmoved: each worker has a part, and no sample moves: the classes of the fastest worker are seen three times
  as often as those of the slowest;
- random: each worker has a shuffled part, and samples move: the cost of parts that are alike.

    apt-get install dataset-fashion-mnist
    python bench/bench_lbbsp_partitioned.py --json out.json          # 4 to 9 minutes on two cores

The JSON holds one flat object. `noniid_minus_iid`: test accuracy of noniid minus that of iid, each the mean
over the last three epochs (at least -0.01); `unmoved_minus_iid` and `random_minus_iid` likewise. The paper
reports 0.92 both for i.i.d. data and with migration. `migrations`, `moved`, `gap`: of the run noniid, at its
end.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from support.provenance import provenance
from support.starting import train

from hpcbal.data import fashion_mnist
from hpcbal.errors import DataError
from hpcbal.events.ensemble import EpochDone
from hpcbal.telemetry.ledger import lines_of

BATCHES = (64, 96, 128, 160, 192)
LAST_EPOCHS = 3
ALLOWED = -0.01
CASES: dict[str, dict[str, Any]] = {
    "iid": {"access": "shared"},
    "noniid": {"access": "partitioned", "partition": "by_class", "max_traversal_gap": 2.0},
    "unmoved": {"access": "partitioned", "partition": "by_class", "max_traversal_gap": None},
    "random": {"access": "partitioned", "partition": "random", "max_traversal_gap": 2.0},
}


def config_of(case: str, folder: Path, epochs: int, seed: int, data_path: str | None) -> dict[str, Any]:
    """The run's configuration."""
    return {
        "name": f"partitioned-{case}",
        "seed": seed,
        "data": {
            "dataset": "hpcbal.data:fashion_mnist",
            "args": {} if data_path is None else {"path": data_path},
            **CASES[case],
        },
        "preprocessing": [{"normalize": {"mean": 0.286, "std": 0.353}}],
        "dnns": [
            {
                "name": "cnn",
                "model": "workloads.partitioned:cnn",
                "batch_size": sum(BATCHES),
                "optimizer": {"name": "adam", "learning_rate": 0.002},
                "stop": {"max_epochs": epochs},
            }
        ],
        "backend": {"name": "tensorflow", "collective": "mpi"},
        "balance": {"policy": "fixed", "shares": list(BATCHES)},
        "schedule": {"profiling": {"max_batches": 2, "timed_batches": 1, "max_gpus": 1}},
        "slots": {"per_node": len(BATCHES), "preprocessors_per_node": 1},
        "timeline": {"max_bytes": 0},
        "output": {"dir": str(folder / "out")},
    }


def measure(case: str, epochs: int, seed: int, data_path: str | None) -> dict[str, Any]:
    """Do one run; returns accuracies by epoch, and figures of the parts after the last epoch."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        began = time.monotonic()
        ledger = train(config_of(case, folder, epochs, seed, data_path), folder)
        seconds = time.monotonic() - began
    epochs_done = lines_of(ledger, EpochDone)
    partition = epochs_done[-1].facts.partition
    return {
        "seconds": seconds,
        "accuracies": [line.metrics["val_accuracy"] for line in epochs_done],
        "losses": [line.metrics["val_loss"] for line in epochs_done],
        "partition": {} if partition is None else asdict(partition),
    }


def report(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Print the table; returns the flat object. `runs` has one run per case and seed."""
    print(f"{'data':<10} {'accuracy':>8} {'- iid':>8} {'gap':>6} {'moved':>6} {'time':>8}  accuracy by epoch")
    result: dict[str, Any] = {}
    for case, of_seeds in runs.items():
        ends = [statistics.mean(run["accuracies"][-LAST_EPOCHS:]) for run in of_seeds]
        result[f"{case}_accuracy"] = accuracy = statistics.mean(ends)
        result[f"{case}_seconds"] = sum(run["seconds"] for run in of_seeds)
        lost = accuracy - result["iid_accuracy"]
        if case != "iid":
            result[f"{case}_minus_iid"] = lost
        parts = of_seeds[-1]["partition"]
        gap, moved = parts.get("gap", 0.0), parts.get("moved", 0)
        curve = " ".join(f"{value:.3f}" for value in of_seeds[0]["accuracies"])
        print(
            f"{case:<10} {accuracy:>8.4f} {lost:>+8.4f} {gap:>6.2f} {moved:>6} "
            f"{result[f'{case}_seconds']:>6.0f} s  {curve}"
        )
    if "noniid" in runs:
        parts = runs["noniid"][-1]["partition"]
        result |= {key: parts[key] for key in ("migrations", "moved", "gap")}
        print(f"noniid_minus_iid {result['noniid_minus_iid']:+.4f} (at least {ALLOWED})")
    return result


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument(
        "--data-path", metavar="DIR", help="folder of the four IDX files; default: that of Debian's package"
    )
    parser.add_argument(
        "--cases", nargs="+", choices=list(CASES), default=["iid", "noniid", "unmoved"], metavar="CASE"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    if args.cases[0] != "iid":
        parser.error("the first of --cases must be iid, because the others are compared with it")
    try:
        fashion_mnist(*([] if args.data_path is None else [args.data_path]))
    except DataError as error:  # raises an error that names the source, before any run
        parser.error(str(error))
    runs: dict[str, list[dict[str, Any]]] = {
        case: [measure(case, args.epochs, seed, args.data_path) for seed in args.seeds] for case in args.cases
    }
    result = report(runs)
    if args.json:
        facts = {"epochs": args.epochs, "seeds": args.seeds, "batches": list(BATCHES)}
        args.json.write_text(json.dumps(result | facts | provenance(), indent=2) + "\n")


if __name__ == "__main__":
    main()

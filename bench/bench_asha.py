"""What pruning saves: a sweep of 27 networks on digits with `prune: asha`, and without.

Both are real runs of `hpcbal run` with TensorFlow on two slots: nine learning rates for each of three widths
of a ResNet. Without pruning every network trains for all epochs. Figures:

- `asha_share`: slot-seconds of the sweep with pruning over those without. They count from when a network gets
  a slot until it leaves it, so profiling, building networks and writing checkpoints are in it. Starting the
  run and loading TensorFlow are not; they cost both sweeps the same.
- `asha_accuracy_lost`: best validation accuracy without pruning, less the best one with it, where one of the
  359 validation samples is 0.0028. The saving counts only if the best accuracy is about the same. A network
  sees the samples in another order if it trains in other passes, and the best of 27 networks at 27 epochs is
  more often lucky than the best of the few that are left.
- `asha_epochs_share`: the same for the number of trained epochs, which does not depend on the machine.
- `asha_share_to_accuracy`: slot-seconds of both sweeps until some network first has the lower of the two best
  accuracies; depends much on which network trains first.

The two take turns, and a figure is the median over the pairs.

    python bench/bench_asha.py --json asha.json                # about 7 minutes on two cores
    python bench/bench_asha.py --min-epochs 3                  # prunes later, loses less
    python bench/bench_asha.py --epochs 3 --rates 0.3 0.01     # short
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.provenance import provenance
from support.starting import train

from hpcbal.events.ensemble import EpochDone, GroupLeft, StartAlone, StartRound
from hpcbal.telemetry.ledger import Entry, RunFinishedLine

LIMITS = {"asha_share": 0.5, "asha_accuracy_lost": 0.01}
METRIC = "val_accuracy"
RATES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)
WIDTHS = (4, 6, 8)


def sweep(output: Path, args: argparse.Namespace, rule: str) -> dict[str, Any]:
    """The configuration of one run."""
    return {
        "name": "sweep",
        "output": {"dir": str(output)},
        "slots": {"per_node": 2},
        "data": {"dataset": "hpcbal.data:digits"},
        "preprocessing": [{"normalize": {"mean": 0.305, "std": 0.376}}],
        "defaults": {
            "optimizer": {"name": "sgd", "momentum": 0.9},
            "batch_size": 32,
            "stop": {"monitor": METRIC, "max_epochs": args.epochs},
        },
        "sweeps": [
            {
                "name": "resnet-w{width}-{learning_rate}",
                "model": "hpcbal.models:resnet",
                "args": {"depth": 8},
                "grid": {"args.width": list(args.widths), "optimizer.learning_rate": list(args.rates)},
            }
        ],
        "prune": {"rule": rule, "min_epochs": args.min_epochs},
    }


@dataclass(frozen=True, slots=True)
class Sweep:
    """What one run of the sweep cost, and what came of it.

    Attributes:
        slot_s: slot-seconds of all networks.
        num_epochs: trained epochs of all networks.
        course: slot-seconds so far and the best accuracy so far, after each epoch of any network.
    """

    slot_s: float
    num_epochs: int
    course: tuple[tuple[float, float], ...]

    @property
    def best(self) -> float:
        return self.course[-1][1]

    def slot_s_until(self, accuracy: float) -> float:
        """Slot-seconds until some network had this accuracy; it must have been reached."""
        return next(slot_s for slot_s, best in self.course if best >= accuracy)


def read(entries: Sequence[Entry]) -> Sweep:
    """Follow a ledger."""
    left_s, num_epochs, best = 0.0, 0, 0.0
    held: dict[str, tuple[float, int]] = {}  # since when, and number of slots
    course = []
    for entry in entries:
        match entry.line:
            case StartRound(plan) | StartAlone(plan):
                held |= {group.dnn_id: (entry.unix_s, len(group.gpus)) for group in plan.groups}
            case EpochDone():
                num_epochs += 1
                best = max(best, entry.line.metrics.get(METRIC, 0.0))
                holding_s = sum((entry.unix_s - since) * slots for since, slots in held.values())
                course.append((left_s + holding_s, best))
            case GroupLeft(dnn):
                held.pop(dnn, None)
                left_s += entry.line.slot_seconds
    last = entries[-1].line
    if not isinstance(last, RunFinishedLine) or last.outcome != "done" or not course:
        raise SystemExit(f"the run did not finish: {last}")
    return Sweep(left_s, num_epochs, tuple(course))


def run_pair(args: argparse.Namespace, number: int) -> dict[str, Sweep]:
    """Both runs; every other pair begins with pruning."""
    rules = ("none", "asha") if number % 2 == 0 else ("asha", "none")
    done: dict[str, Sweep] = {}
    for rule in rules:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            done[rule] = read(train(sweep(folder / "out", args, rule), folder))
        each = done[rule]
        print(
            f"pair {number}, {rule:<5} {each.num_epochs:5} epochs  {each.slot_s:8.1f} slot-seconds  "
            f"best accuracy {each.best:.4f}",
            flush=True,
        )
    return done


def figures(pair: dict[str, Sweep]) -> dict[str, float]:
    """The figures of one pair."""
    plain, pruned = pair["none"], pair["asha"]
    same = min(plain.best, pruned.best)
    return {
        "asha_share": pruned.slot_s / plain.slot_s,
        "asha_accuracy_lost": plain.best - pruned.best,
        "asha_epochs_share": pruned.num_epochs / plain.num_epochs,
        "asha_share_to_accuracy": pruned.slot_s_until(same) / plain.slot_s_until(same),
    }


def main() -> int:
    """Run the pairs and print; the exit code is 0 even beyond the limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeat", type=int, default=1, help="pairs of runs (default: 1)")
    parser.add_argument("--epochs", type=int, default=27, help="epochs of each network (default: 27)")
    parser.add_argument("--min-epochs", type=int, default=1, help="epochs up to the first rung (default: 1)")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="learning rates")
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS, help="widths of the networks")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as one flat object")
    args = parser.parse_args()
    rows = [figures(run_pair(args, number)) for number in range(args.repeat)]
    found = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    for key, value in found.items():
        limit = f"limit {LIMITS[key]}" if key in LIMITS else ""
        print(f"{key:<24} {value:8.3f}  {limit}".rstrip())
    if args.json:
        sizes = {"num_networks": len(args.rates) * len(args.widths), "min_epochs": args.min_epochs}
        facts = {**sizes, "limits": LIMITS, **provenance()}
        args.json.write_text(json.dumps({**found, **facts}, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Real runs on PLAID: TensorFlow workers, under each way to order and to deal samples of unequal size.

A run trains `configs/plaid.yaml` for a fixed number of epochs. Its ledger says how long the training steps of
an epoch took, which share of that the workers waited for each other, and how accurate the network was.
The ways take turns, and each turn has a seed of its own, so ways are compared on the same batches of the same
minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml
from support.starting import HERE, environment, train
from workloads.series_weights import compare

from hpcbal.config.schema.ensemble import BalanceConfig
from hpcbal.data import ts_series
from hpcbal.data.datasets.ts_series import TsSeries
from hpcbal.errors import DataError
from hpcbal.events.ensemble import EpochDone
from hpcbal.policies.batching import split_evenly
from hpcbal.policies.orders import sample_order
from hpcbal.policies.samples import GROUPED_BATCHES, StepCost, order_in_windows, size_order
from hpcbal.runtime.balance.dealing import Dealer
from hpcbal.telemetry.ledger import lines_of
from hpcbal.values.selection import StepShares

IntArray = npt.NDArray[np.int64]

NUM_WORKERS = 3
FEW_WORKERS, FEW_EPOCHS = 2, 15
"""Shorter runs with fewer workers; on two cores each of them has one."""
TIMES = ("over_random", "over_grouped", "pass_over_random", "pass_over_grouped", "waiting")
SETTLING_EPOCHS = 5
"""First epochs, in which kernels are prepared for most shapes; their times do not count."""
TIMED_EPOCHS = 5
"""Of the CPU times of shares, after the first epochs."""
LAST_EPOCHS = 5
"""Test accuracy is their mean."""


@dataclass(frozen=True)
class Way:
    """How samples are ordered and dealt.

    Attributes:
        lookahead: `data.lookahead`.
        samples: `balance.samples`.
    """

    lookahead: int
    samples: str


WAYS = {
    "random": Way(1, "in-order"),
    "grouped": Way(GROUPED_BATCHES, "in-order"),
    "within_batch": Way(1, "within-batch"),
    "lookahead_4": Way(4, "within-batch"),
    "lookahead_8": Way(8, "within-batch"),
}
OURS = "lookahead_8"


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        epoch_s: seconds of an epoch's training steps with the waits for their batches; median.
        pass_s: seconds of the whole pass, with its validation; median. Samples are dealt there too, but the
            lookahead leaves their order alone.
        waiting: share of `epoch_s` in which workers waited for others and summed gradients; their mean.
        accuracy: on the test series, mean of the last epochs.
    """

    epoch_s: float
    pass_s: float
    waiting: float
    accuracy: float


def plaid_config() -> dict[str, Any]:
    """`configs/plaid.yaml` as it is."""
    text = (HERE.parent / "configs" / "plaid.yaml").read_text(encoding="utf-8")
    config: dict[str, Any] = yaml.safe_load(text)
    return config


def open_plaid(series: Path) -> TsSeries:
    """The data set in this folder.

    Raises: DataError: a file is missing or broken.
    """
    return ts_series(**files_of(series))


def files_of(series: Path) -> dict[str, str]:
    return {part: str(series / f"PLAID_{part.upper()}.ts") for part in ("train", "test")}


def config_of(
    way: Way, num_workers: int, seed: int, epochs: int, series: Path, output: Path
) -> dict[str, Any]:
    """`configs/plaid.yaml`, one way to deal, without profiling."""
    config = plaid_config()
    config["data"] |= {"args": files_of(series), "lookahead": way.lookahead}
    config["dnns"][0]["stop"] = {"max_epochs": epochs}
    return config | {
        "seed": seed,
        "balance": {"policy": "even", "samples": way.samples, "cost": "padded"},
        "backend": {"name": "tensorflow", "collective": "mpi"},
        "schedule": {"profiling": {"max_batches": 2, "timed_batches": 1, "max_gpus": 1}},
        "slots": {"per_node": num_workers, "preprocessors_per_node": 1},
        "output": {"dir": str(output)},
    }


def run_of(lines: Sequence[EpochDone]) -> Run:
    """What the epochs of a ledger say."""
    epoch_s, pass_s, waiting = [], [], []
    for line in lines[SETTLING_EPOCHS:]:
        ranks = line.facts.ranks
        assert ranks is not None, "a group of several ranks reports the times of each"
        epoch_s.append(line.facts.trained_s + max(ranks.wait_s))
        pass_s.append(line.seconds)
        waiting.append(statistics.mean(ranks.collective_s) / epoch_s[-1])
    accuracies = [np.nan_to_num(line.metrics["val_accuracy"]) for line in lines[-LAST_EPOCHS:]]
    return Run(
        statistics.median(epoch_s),
        statistics.median(pass_s),
        statistics.median(waiting),
        statistics.mean(accuracies),
    )


def measure(way: Way, num_workers: int, seed: int, epochs: int, series: Path) -> Run:
    """Do one run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ledger = train(config_of(way, num_workers, seed, epochs, series, folder / "out"), folder)
    return run_of(lines_of(ledger, EpochDone))


def in_turns(num_workers: int, num_turns: int, epochs: int, series: Path) -> dict[str, list[Run]]:
    """The runs of each way, one per turn; every second turn goes backwards."""
    runs: dict[str, list[Run]] = {name: [] for name in WAYS}
    for turn in range(num_turns):
        for name in list(WAYS)[:: -1 if turn % 2 else 1]:
            run = measure(WAYS[name], num_workers, turn, epochs, series)
            print(f"  turn {turn} {name:<13}{run.epoch_s:>7.2f} s {run.accuracy:.3f}", flush=True)
            runs[name].append(run)
    return runs


def over(runs: Sequence[Run], others: Sequence[Run], key: str = "epoch_s") -> float:
    """Time of an epoch over that of another way; median of the turns."""
    return statistics.median(
        getattr(own, key) / getattr(other, key) for own, other in zip(runs, others, strict=True)
    )


def steps_of(way: Way, num_workers: int, source: TsSeries, epoch: int) -> Iterator[list[IntArray]]:
    """The samples of each worker in the steps of an epoch, as a run with seed 0 deals them."""
    batch_size: int = plaid_config()["dnns"][0]["batch_size"]
    sizes = np.asarray(source.sizes, np.float64)
    train = np.setdiff1d(np.arange(len(sizes)), np.array(source.validation_ids))
    order = train[sample_order(len(train), 0, epoch)]
    order = order[order_in_windows(sizes[order], batch_size, way.lookahead, 0, epoch)]
    dealer = Dealer(BalanceConfig.model_validate({"samples": way.samples}))
    for start in range(0, len(order), batch_size):
        ids = order[start : start + batch_size]
        even = StepShares.neighbours(0, split_evenly(len(ids), num_workers))
        shares = dealer.deal(even, ids, sizes[ids], (1.0,) * num_workers).shares
        yield [ids[shares.of_rank(rank).positions] for rank in range(num_workers)]


def shape_of(way: Way, num_workers: int, source: TsSeries) -> dict[str, float]:
    """What a way does to the batches of one epoch, whatever the machine.

    Returns:
        `padded`: work with its padding over the sum of the lengths. `busiest`: work of the steps' busiest
        workers over that of equal shares. `between_batches`: share of the lengths' variance that lies between
        batches.
    """
    sizes, steps = np.asarray(source.sizes, np.float64), list(steps_of(way, num_workers, source, 0))
    work = np.array([[StepCost.PADDED.of(sizes[ids]) for ids in shares] for shares in steps])
    in_order = sizes[np.concatenate([np.concatenate(shares) for shares in steps])]
    return {
        "padded": float(work.sum() / in_order.sum()),
        "busiest": float(num_workers * work.max(axis=1).sum() / work.sum()),
        "between_batches": size_order(in_order, sum(map(len, steps[0]))),
    }


def on_own_cores(prefix: str, num_workers: int, num_epochs: int, series: Path) -> dict[str, float]:
    """Time of an epoch if each worker had a core of its own, from the CPU times of shares computed in turn.

    A step takes as long as its slowest share. The sum of gradients and the update are left out.
    """
    program = HERE / "ranks" / "series_time.py"
    command = [sys.executable, str(program), str(series), str(num_workers), str(SETTLING_EPOCHS + num_epochs)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{done.stderr}\n{program.name} ended with code {done.returncode}")
    seconds = {name: np.array(times) for name, times in json.loads(done.stdout.splitlines()[-1]).items()}
    found: dict[str, float] = {}
    print(f"\n{num_workers} workers with a core each, from the CPU times of their shares: time of an epoch,")
    print("over that of random and of grouped order, share of it in which workers wait for others")
    for name, times in seconds.items():  # (epochs, steps, workers)
        epoch_s = times.max(axis=2).sum(axis=1)
        facts = {
            "over_random": np.median(epoch_s / seconds["random"].max(axis=2).sum(axis=1)),
            "over_grouped": np.median(epoch_s / seconds["grouped"].max(axis=2).sum(axis=1)),
            "waiting": np.median(1 - times.mean(axis=2).sum(axis=1) / epoch_s),
        }
        print(
            f"{name:<13}{np.median(epoch_s):>6.2f} s" + "".join(f"{float(x):>8.3f}" for x in facts.values())
        )
        found |= {f"{prefix}{name}_{key}": float(value) for key, value in facts.items()}
    return found


def compare_ways(
    prefix: str, num_workers: int, num_turns: int, epochs: int, series: Path
) -> dict[str, float]:
    """Print a table of all ways; returns the figures, whose names begin with the prefix."""
    cores = len(os.sched_getaffinity(0))
    print(f"\nPLAID, {num_workers} TensorFlow workers of one thread on {cores} cores, {epochs} epochs")
    runs, source = in_turns(num_workers, num_turns, epochs, series), open_plaid(series)
    print("time of an epoch's training, over that of random and of grouped order; the same with validation;")
    print("share of it in which workers wait for others; test accuracy; work with padding over the lengths,")
    print(
        "work of a step's busiest worker over an equal share, share of the lengths' variance between batches"
    )
    found: dict[str, float] = {}
    for name, way in WAYS.items():
        own = runs[name]
        accuracy = [run.accuracy for run in own]
        facts = {
            "epoch_s": statistics.median(run.epoch_s for run in own),
            "over_random": over(own, runs["random"]),
            "over_grouped": over(own, runs["grouped"]),
            "pass_over_random": over(own, runs["random"], "pass_s"),
            "pass_over_grouped": over(own, runs["grouped"], "pass_s"),
            "waiting": statistics.median(run.waiting for run in own),
            "accuracy": statistics.mean(accuracy),
            "accuracy_spread": statistics.stdev(accuracy) if num_turns > 1 else 0.0,
            **shape_of(way, num_workers, source),
        }
        times = "".join(f"{facts[key]:>8.3f}" for key in TIMES)
        shape = "".join(f"{facts[key]:>8.3f}" for key in ("padded", "busiest", "between_batches"))
        learnt = f"{facts['accuracy']:>10.3f} +- {facts['accuracy_spread']:.3f}"
        print(f"{name:<13}{facts['epoch_s']:>6.2f} s{times}{learnt}  {shape}")
        found |= {f"{prefix}{name}_{key}": value for key, value in facts.items()}
    return found | {
        f"{prefix}{key}": found[f"{prefix}{OURS}_{key}"] for key in ("over_random", "over_grouped")
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the real runs."""
    parser.add_argument(
        "--series", type=Path, default=HERE.parent / "data" / "series", help="folder of the PLAID files"
    )
    parser.add_argument("--turns", type=int, default=3, help="real runs of each way, and seeds of the replay")
    parser.add_argument(
        "--epochs",
        type=int,
        nargs=2,
        default=(24, 20),
        metavar=("RUN", "REPLAY"),
        help="of real runs and of the replay",
    )
    parser.add_argument("--only-real", action="store_true", help="leave out the emulated workers")


def check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """End with a message if the data are missing, before anything is measured."""
    try:
        open_plaid(args.series)
    except DataError as error:
        parser.error(f"{error}; get the data with scripts/get_series.sh {args.series}")


def figures(args: argparse.Namespace) -> dict[str, float]:
    """All figures of real data."""
    turns, (epochs, replayed), series = args.turns, args.epochs, args.series
    found = compare_ways("plaid_", NUM_WORKERS, turns, epochs, series)
    for alias, name in (("ours", OURS), ("random", "random"), ("grouped", "grouped")):
        found[f"plaid_accuracy_{alias}"] = found[f"plaid_{name}_accuracy"]
    few = compare_ways(f"plaid_{FEW_WORKERS}_", FEW_WORKERS, turns, min(epochs, FEW_EPOCHS), series)
    found |= {key: value for key, value in few.items() if "accuracy" not in key}
    found |= on_own_cores("plaid_own_cores_", NUM_WORKERS, TIMED_EPOCHS, series)
    return found | compare(open_plaid(series), range(turns), replayed)

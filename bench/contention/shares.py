"""Real TensorFlow workers of unequal speed in one `hpcbal run`, with every way to split steps in turn.

The workers' speeds differ by their cores alone (unequal_workers.py). Each way trains a copy of the same
network, one after the other on all workers, in turns. Rates are chosen so that no two networks share a round,
and every second turn goes through the ways backwards. Ways are compared within a turn, and the number of
turns is even, so a machine that slows down steadily favours none of them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from contention.unequal_workers import start

from hpcbal.telemetry.streams.timeline import read_timeline

STEPS, PASSES = 10, 5  # steps of each network and turn
SETTLING_PASSES = 2  # models are traced and shares settle in them
NUM_VALIDATION = 10
TRIALS = (0.9, 0.95, 1.0, 1.05, 1.1)  # of the fast worker's share, around the ideal

Turns = Mapping[str, Sequence[float]]
"""For each way to split a step: the median seconds of a step, by turn."""


@dataclass(frozen=True)
class Setting:
    """Workers of unequal speed.

    Attributes:
        name: for tables and keys.
        cores: core of each worker; the first worker has a core of its own.
        batch_size: samples of a step.
    """

    name: str
    cores: tuple[int, ...]
    batch_size: int

    @property
    def speeds(self) -> tuple[float, ...]:
        """Speed of each worker if all cores are equal: its part of its core."""
        return tuple(1.0 / self.cores.count(core) for core in self.cores)

    @property
    def even_over_best(self) -> float:
        """The cost of even shares in theory: the slowest worker's time over that of the ideal split."""
        return sum(self.speeds) / (len(self.speeds) * min(self.speeds))


def ways(setting: Setting) -> dict[str, dict[str, Any]]:
    """Keys of a network, by the name of its way to split steps."""
    tried = {
        fixed_name(trial): {
            "balance": "fixed",
            "shares": [trial * setting.speeds[0], *setting.speeds[1:]],
        }
        for trial in TRIALS
    }
    return {"even": {"balance": "even"}, **tried, **{p: {"balance": p} for p in ("lb-bsp-cpu", "fitted")}}


def order_of(setting: Setting, num_turns: int) -> list[tuple[int, str]]:
    """Turn and way of each network, in the order in which they train; even shares in the first turn only."""
    names = [name for name in ways(setting) if name != "even"]
    later = [(turn, name) for turn in range(num_turns) for name in names[:: -1 if turn % 2 else 1]]
    return [(0, "even"), *later]


def dnn_name(turn: int, way: str) -> str:
    return f"{turn}-{way.replace(' ', '-')}"


def config_of(setting: Setting, num_turns: int, channels: int, folder: Path) -> dict[str, Any]:
    """The configuration of the run."""
    keys = ways(setting)
    num_train = STEPS * setting.batch_size
    dnns = [
        {
            "name": dnn_name(turn, way),
            "model": "workloads.lbbsp:convolutions",
            "args": {"channels": channels},
            "batch_size": setting.batch_size,
            "optimizer": {"name": "sgd", "learning_rate": 0.01},
            "stop": {"max_epochs": PASSES},
            **keys[way],
        }
        for turn, way in order_of(setting, num_turns)
    ]
    num_samples = num_train + NUM_VALIDATION
    return {
        "name": "real-shares",
        "data": {
            "dataset": "workloads.lbbsp:images",
            "args": {"num_samples": num_samples},
            "validation_fraction": NUM_VALIDATION / num_samples,
        },
        "dnns": dnns,
        "schedule": {"paradigm": "global", "delta": 0.0, "profiling": {"rates": str(folder / "rates.json")}},
        "slots": {"per_node": len(setting.cores)},
        "output": {"dir": str(folder / "out")},
    }


def rates_of(names: Iterable[str], num_workers: int) -> dict[str, Any]:
    """A profile in which each network is ten times slower than the one before, so all train alone."""
    entries = {
        name: {
            "dnn": name,
            "gpus_per_node": num_workers,
            "samples_per_s": {str(m): m * 10.0**-place for m in range(1, num_workers + 1)},
        }
        for place, name in enumerate(names)
    }
    return {"format": 1, "entries": entries}


def measure(setting: Setting, num_turns: int, channels: int) -> dict[str, list[float]]:
    """Start a run and wait for it; returns seconds of steps, see `Turns`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = config_of(setting, num_turns, channels, folder)
        names = [dnn["name"] for dnn in config["dnns"]]
        (folder / "rates.json").write_text(json.dumps(rates_of(names, len(setting.cores))))
        (folder / "run.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        with (folder / "log").open("wb") as log:
            code = start(["run", str(folder / "run.yaml")], setting.cores, log=log).wait()
        if code:
            raise SystemExit(f"{(folder / 'log').read_text()}\nreal_shares: the run ended with code {code}")
        events = read_timeline(folder / "out" / "timeline.json.gz")
    steps = steps_by_dnn(events)
    turns: dict[str, list[float]] = {}
    for turn, way in sorted(order_of(setting, num_turns), key=itemgetter(0)):
        turns.setdefault(way, []).append(float(np.median(steps[dnn_name(turn, way)])))
    return turns


def best_fixed(turns: Turns) -> str:
    """The fixed split with the smallest median over the turns, relative to the mean of each turn."""
    fixed = [way for way in turns if way.startswith("fixed")]
    means: list[float] = np.mean([turns[way] for way in fixed], axis=0).tolist()
    return min(fixed, key=lambda way: over(turns[way], means))


def over(seconds: Sequence[float], reference: Sequence[float]) -> float:
    """Median over the turns of the ratio; turns that only `reference` has are skipped."""
    return float(np.median(np.divide(seconds, reference[: len(seconds)])))


def range_over(seconds: Sequence[float], reference: Sequence[float]) -> tuple[float, float]:
    """The smallest and the largest ratio behind `over`; there are too few turns for percentiles."""
    ratios = np.divide(seconds, reference[: len(seconds)])
    return float(ratios.min()), float(ratios.max())


def is_bracketed(best_way: str) -> bool:
    """Whether splits on both sides of the best one were tried."""
    return best_way not in {fixed_name(TRIALS[0]), fixed_name(TRIALS[-1])}


def fixed_name(trial: float) -> str:
    return f"fixed x{trial:g}"


def steps_by_dnn(events: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Seconds of each training step after settling, by network: from the end of one to the end of the next.

    They include waiting for a batch and everything else between two steps. They come from the track of the
    first trainer with passes.

    Args:
        events: of timeline.json.gz.
    """
    track = min(event["tid"] for event in events if event.get("cat") == "pass")
    own = [event for event in events if event["tid"] == track and event["ph"] == "X"]
    ends = sorted(event["ts"] + event["dur"] for event in own if event["name"] == "update")
    found: dict[str, list[float]] = {}
    passes: dict[str, int] = {}
    for event in sorted((e for e in own if e["cat"] == "pass"), key=lambda e: e["ts"]):
        dnn = event["name"].rpartition(" pass ")[0]
        passes[dnn] = passes.get(dnn, 0) + 1
        if passes[dnn] <= SETTLING_PASSES:
            continue
        inside = [end for end in ends if event["ts"] <= end <= event["ts"] + event["dur"]]
        training = inside[:STEPS]  # validation comes last
        found.setdefault(dnn, []).extend((np.diff(training) / 1e6).tolist())
    return found

"""Real TensorFlow workers of unequal speed in one `hpcbal run`, with every way to share a step out in turn.

The workers' speeds come from their cores alone (unequal_workers.py). All ways train the same network, one
after the other and again from the first, each on all workers: rates are given so that no two share a round.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from unequal_workers import start

from hpcbal.telemetry.timeline import read_timeline

STEPS, PASSES = 10, 6  # of each network and turn
SETTLING_PASSES = 2  # models are traced and shares settle in them
NUM_VALIDATION = 10
TRIALS = (0.92, 1.0, 1.08)  # of the fast worker's share, around the ideal


@dataclass(frozen=True)
class Setting:
    """Workers of unequal speed.

    Attributes:
        name: for tables and keys.
        cores: of each worker; the first has one for itself.
        batch_size: samples of a step.
    """

    name: str
    cores: tuple[int, ...]
    batch_size: int

    @property
    def speeds(self) -> tuple[float, ...]:
        """Of each worker, if all cores are alike: its part of its core."""
        return tuple(1.0 / self.cores.count(core) for core in self.cores)

    @property
    def even_over_best(self) -> float:
        """What even shares cost in theory: the slowest worker's time over that of the ideal split."""
        return sum(self.speeds) / (len(self.speeds) * min(self.speeds))


def ways(setting: Setting) -> dict[str, dict[str, Any]]:
    """Keys of a network by the name of its way to share steps out."""
    tried = {
        f"fixed x{trial:g}": {
            "balance": "fixed",
            "shares": [trial * setting.speeds[0], *setting.speeds[1:]],
        }
        for trial in TRIALS
    }
    return {"even": {"balance": "even"}, **tried, **{p: {"balance": p} for p in ("lb-bsp-cpu", "fitted")}}


def config_of(setting: Setting, repeat: int, channels: int, folder: Path) -> dict[str, Any]:
    """The configuration, as YAML has it; every way `repeat` times, in turns."""
    num_train = STEPS * setting.batch_size
    dnns = [
        {
            "name": f"{turn}-{name.replace(' ', '-')}",
            "model": "lbbsp_data:convolutions",
            "args": {"channels": channels},
            "batch_size": setting.batch_size,
            "optimizer": {"name": "sgd", "learning_rate": 0.01},
            "stop": {"max_epochs": PASSES},
            **keys,
        }
        for turn in range(repeat)
        for name, keys in ways(setting).items()
    ]
    num_samples = num_train + NUM_VALIDATION
    return {
        "name": "real-shares",
        "data": {
            "dataset": "lbbsp_data:images",
            "args": {"num_samples": num_samples},
            "validation_fraction": NUM_VALIDATION / num_samples,
        },
        "dnns": dnns,
        "schedule": {"delta": 0.0, "profiling": {"rates": str(folder / "rates.json")}},
        "slots": {"per_node": len(setting.cores)},
        "output": {"dir": str(folder / "out")},
    }


def rates_of(names: Iterable[str], num_workers: int) -> dict[str, Any]:
    """A profile in which each network is ten times slower than the one before: all train alone, in order."""
    entries = {
        name: {
            "dnn": name,
            "gpus_per_node": num_workers,
            "samples_per_s": {str(m): m * 10.0**-place for m in range(1, num_workers + 1)},
        }
        for place, name in enumerate(names)
    }
    return {"format": 1, "entries": entries}


def measure(setting: Setting, repeat: int, channels: int) -> dict[str, float]:
    """Median seconds of a step by the way to share it out; starts a run and waits for it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = config_of(setting, repeat, channels, folder)
        names = [dnn["name"] for dnn in config["dnns"]]
        (folder / "rates.json").write_text(json.dumps(rates_of(names, len(setting.cores))))
        (folder / "run.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        with (folder / "log").open("wb") as log:
            code = start(["run", str(folder / "run.yaml")], setting.cores, log=log).wait()
        if code:
            raise SystemExit(f"{(folder / 'log').read_text()}\nreal_shares: the run ended with code {code}")
        events = read_timeline(folder / "out" / "timeline.json.gz")
    steps = steps_by_dnn(events)
    return {
        way: float(
            np.median([s for dnn in names if dnn.endswith(f"-{way.replace(' ', '-')}") for s in steps[dnn]])
        )
        for way in ways(setting)
    }


def steps_by_dnn(events: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Seconds of each training step after settling, by network: from the end of one to the end of the next.

    Waiting for a batch and whatever else happens between two steps is in them. Taken from the track of the
    first trainer that has passes.

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

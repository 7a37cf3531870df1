"""Forecasts of asynchronous jobs on our own parameter servers against real runs of emulated machines.

`hpcbal profile --operations` profiles a job with one worker and one server. `hpcbal forecast` predicts it on
more of both from that trace alone. Then real ranks with paced computing and links run it.
"""

from __future__ import annotations

import gzip
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from support.starting import environment, train

BATCH = 4
TURNS = 2
"""Of a worker in an epoch: each takes a block of data."""

ROWS, COLUMNS = 240, 1000
PROFILE_STEPS = 20
SECONDS = 20.0
"""That a run should take, by its forecast."""

LEAST_EPOCHS, MOST_EPOCHS = 6, 20
MOST_MACHINES = 32

BESIDE = {
    "ps_error_median": ("0.05 to 0.10 (TensorFlow, read from plots)", "0.05"),
    "ps_error_max": ("0.10 (private cluster), 0.25 (2 servers)", "0.10"),
}
"""Key -> (the paper's figure, the limit)."""


@dataclass(frozen=True)
class EngineJob:
    """A job on equal machines.

    Attributes:
        seconds_per_sample: of computing.
        bandwidth: of each machine, in bytes/s.
        sizes: numbers of workers and servers to compare.
    """

    seconds_per_sample: float
    bandwidth: float
    sizes: tuple[tuple[int, int], ...]

    def config(self, output: Path, workers: int, servers: int, epochs: int) -> dict[str, Any]:
        """The file of a run; its first epoch and its last ones are not measured."""
        return {
            "kind": "paramserver",
            "name": "forecast",
            "output": {"dir": str(output)},
            "app": "workloads.serving:Sized",
            "args": {"num_rows": ROWS, "num_columns": COLUMNS},
            "data": {
                "dataset": "workloads.serving:Empty",
                "args": {"num_samples": workers * TURNS * BATCH},
            },
            "mini_batch": BATCH,
            "consistency": "async",
            "stop": {"max_epochs": epochs},
            "objective": {"every": epochs},
            "blocks": {"data": workers * TURNS, "parameters": 48},
            "workers": workers,
            "servers": servers,
            "tune": {"enabled": False},
            "slots": {"per_node": workers + servers},
            "checkpoint": {"interval_s": 3600},
            "machines": [
                {
                    "count": MOST_MACHINES,
                    "seconds_per_sample": self.seconds_per_sample,
                    "bandwidth": self.bandwidth,
                }
            ],
        }


JOBS = {
    "links": EngineJob(0.05, 5e6, ((1, 1), (2, 1), (3, 1), (4, 1), (4, 2), (8, 2), (12, 4), (16, 4))),
    "both": EngineJob(0.15, 8e6, ((1, 1), (4, 1), (8, 1), (12, 1), (8, 2), (16, 2), (12, 3), (16, 4))),
    "computing": EngineJob(0.25, 10e6, ((2, 1), (8, 1), (12, 1), (16, 1), (16, 2), (6, 3))),
}
"""What limits one worker with one server most -> the job."""


def measure(names: Iterable[str] = tuple(JOBS)) -> dict[str, Any]:
    """`ps_error_median`, `ps_error_max`, and `ps_errors` of all runs: (forecast - run) / run.

    Args:
        names: of the jobs to take.
    """
    errors = {}
    for name in names:
        job = JOBS[name]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "job.yaml"
            path.write_text(yaml.safe_dump(job.config(Path(folder) / "run", 1, 1, 10)), encoding="utf-8")
            _hpcbal("profile", "--operations", str(path), "--steps", str(PROFILE_STEPS))
            for workers, servers in job.sizes:
                forecast = _forecast(path, workers, servers)
                run = _run(job, workers, servers, forecast)
                errors[f"{name} {workers}x{servers}"] = error = forecast / run - 1
                print(
                    f"{name:<10} {workers:>2} workers {servers} servers: forecast {forecast:7.2f} samples/s, "
                    f"run {run:7.2f}, {error:+.1%}",
                    flush=True,
                )
    sizes = [abs(error) for error in errors.values()]
    return {"ps_error_median": statistics.median(sizes), "ps_error_max": max(sizes), "ps_errors": errors}


def _forecast(path: Path, workers: int, servers: int) -> float:
    """Samples per second of all workers."""
    text = _hpcbal(
        "forecast",
        str(path),
        "--workers",
        str(workers),
        "--servers",
        str(servers),
        "--steps",
        "300",
        "--json",
    )
    (row,) = json.loads(text)["rows"]
    return float(row["samples_per_s"]["value"])


def _run(job: EngineJob, workers: int, servers: int, forecast: float) -> float:
    """The same of real ranks."""
    turns = SECONDS * forecast / BATCH / workers
    epochs = min(max(LEAST_EPOCHS, round(turns / TURNS)), MOST_EPOCHS)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "run"
        train(job.config(output, workers, servers, epochs), Path(folder))
        return _samples_per_s(output / "timeline.json.gz", workers)


def _samples_per_s(timeline: Path, workers: int) -> float:
    """What all workers did between their first epochs and the end of the first worker.

    Each has its own pace: epochs as the master counts them would be those of the slowest.
    """
    events = json.loads(gzip.decompress(timeline.read_bytes()))
    ends: dict[int, list[float]] = {}
    for event in events:
        if event.get("cat") == "epoch":
            ends.setdefault(event["tid"], []).append((event["ts"] + event["dur"]) / 1e6)
    assert len(ends) == workers
    over_s = min(map(max, ends.values()))
    total = 0.0
    for each in ends.values():
        counted = [end for end in sorted(each) if end <= over_s]
        total += TURNS * BATCH * (len(counted) - 1) / (counted[-1] - counted[0])
    return total


def _hpcbal(*arguments: str) -> str:
    """Run a command; returns what it printed."""
    command = [sys.executable, "-m", "hpcbal", *arguments]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{done.stdout}{done.stderr}\n{' '.join(arguments)} ended with {done.returncode}")
    return done.stdout

"""Forecasts of asynchronous training against real runs, and the time that they take ([ASGD] Sec. 4).

    python bench/bench_forecast.py --json out.json
    python bench/bench_forecast.py --only speed

Part `engine`: `hpcbal profile --operations` profiles a job with one worker and one server. `hpcbal forecast`
predicts it on more of both from that trace alone. Then real ranks with paced computing and links run it.

- `ps_error_median`, `ps_error_max`: of |forecast / run - 1| (at most 0.05 and 0.10; the paper on TensorFlow:
  0.05 to 0.10, and 0.10 to 0.25). `ps_errors` lists them.

Part `speed`: the trace of configs/alexnet.trace.jsonl with 2 to 10 workers, 1,000 steps each, on one core.

- `ns_per_operation`: to simulate one.
"""

from __future__ import annotations

import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from support.figures import parser_of, write_figures
from support.starting import HERE, environment, train

from hpcbal.forecast import Links, Settings, Topology, simulate
from hpcbal.forecast.trace_file import read_trace

BATCH = 4
TURNS = 2
"""Of a worker in an epoch: each takes a block of data."""

ROWS, COLUMNS = 240, 1000
PROFILE_STEPS = 20
SECONDS = 20.0
"""That a run should take, by its forecast."""

LEAST_EPOCHS, MOST_EPOCHS = 6, 20
MOST_MACHINES = 32

MEDIAN_ALLOWED, MOST_ALLOWED = 0.05, 0.10


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
"""Jobs by the part that limits one worker with one server most."""


def against_runs() -> dict[str, Any]:
    """The keys of part `engine`."""
    errors = {}
    for name, job in JOBS.items():
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
    median, most = statistics.median(sizes), max(sizes)
    print(f"ps_error_median {median:.3f} (at most {MEDIAN_ALLOWED}), max {most:.3f} (at most {MOST_ALLOWED})")
    return {"ps_error_median": median, "ps_error_max": most, "ps_errors": errors}


def _forecast(path: Path, workers: int, servers: int) -> float:
    """Samples per second of all workers."""
    sizes = ("--workers", str(workers), "--servers", str(servers))
    text = _hpcbal("forecast", str(path), *sizes, "--steps", "300", "--json")
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
    """Return the samples per second of all workers, from their first epochs to the end of the first worker.

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


TRACE = HERE.parent / "configs" / "alexnet.trace.jsonl"
WORKERS, NUM_STEPS, BYTES_PER_S = range(2, 11), 1000, 10e9 / 8


def speed() -> dict[str, Any]:
    """The keys of part `speed`."""
    trace = read_trace(TRACE)
    seconds, num_done = 0.0, 0
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        for count in WORKERS:
            cluster = Topology((Links(BYTES_PER_S, BYTES_PER_S),) * count, (Links(BYTES_PER_S, BYTES_PER_S),))
            began = time.perf_counter()
            replay = simulate(trace, cluster, Settings(NUM_STEPS))
            spent_s, done = time.perf_counter() - began, sum(ends.size for ends in replay.ends_s)
            seconds, num_done = seconds + spent_s, num_done + done
    finally:
        os.sched_setaffinity(0, allowed)
    ns = 1e9 * seconds / num_done / len(trace.operations)
    print(f"ns_per_operation {ns:.3g}")
    return {"ns_per_operation": ns}


PARTS = {"engine": against_runs, "speed": speed}


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--only", choices=tuple(PARTS), help="measure only this part")
    args = parser.parse_args(argv)
    found: dict[str, Any] = {"load_before": os.getloadavg()[0]}
    for part, measure in PARTS.items():
        if args.only in (None, part):
            found |= measure()
    write_figures(args.json, found)


if __name__ == "__main__":
    main()

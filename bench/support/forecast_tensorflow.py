"""Forecasts against real TensorFlow parameter servers whose links are limited ([ASGD] Sec. 4.2, Sec. 5).

    python -m support.forecast_tensorflow alexnet-64-1 vgg-32-2      # network, batch, servers: only these

A case takes some five minutes: one worker trains and is recorded; then one to eight workers replay the
recorded computation with waits, and move real parameters and updates. What a step of one takes beside its
operations is added to the forecast. Two and more train several times, with starts spread differently. Each
run is simulated as it was (`forecast_windows`), and the means over the runs are compared. The forecast that
users get is compared with the same.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from support.forecast_cluster import TensorFlowCluster, tensorflow_cluster
from support.forecast_windows import Window

from hpcbal.forecast import Settings
from hpcbal.forecast.cluster import Cluster, Links
from hpcbal.forecast.overhead import with_step_overhead
from hpcbal.forecast.prediction import Job, predict, step_overhead
from hpcbal.forecast.rivals import cynthia, phases_of, queueing
from hpcbal.forecast.run_metadata import trace_of_run_metadata
from hpcbal.forecast.trace import Trace
from hpcbal.forecast.trace_file import write_trace

BYTES_PER_S = 25e6
"""200 Mbit/s. The relay and gRPC copy every byte several times on two cores; 1 Gbps leaves them no room."""
RECORDED = 20
FIRST_S = 3.0
"""The first steps of a new graph take longer; they are not measured."""
ALONE_S, WARM_UP_S, TRAINED_S = 8.0, 1.0, 7.0
SPREADS = (0.0, 0.5, 1.0)
"""Of the starts of all workers, in steps of one alone. Many short runs leave less to chance than one long."""
NUM_REPEATS = 200
NUM_SIMULATED = 1000
BAND = (0.05, 0.95)

MODELS = {"tf": "forecast", "tf_long_run": "long_run", "tf_lin": "queueing", "tf_cynthia": "cynthia"}

NETWORKS = ("alexnet", "googlenet", "resnet", "vgg")
BATCHES = (32, 64)
NUM_SERVERS = (1, 2)
WORKERS = tuple(range(2, 9))
"""Beside one, with which the forecast is calibrated."""
MOST_REAL = 2
"""Workers that compute for real, as a check of the replay; there are two cores."""

HEAD = (
    "case             W  real/s  forecast   error          band  long run     Lin  Cynthia  "
    "each run: real/simulated"
)
BESIDE = {
    "tf_error_median": ("<= 0.10 (max)", "0.05"),
    "tf_error_max": ("0.10, once 0.20", "0.10"),
    "tf_in_band": ("", "(0.90 by chance)"),
}
"""Key -> (the paper's figure, the limit)."""


@dataclass(frozen=True, slots=True)
class Case:
    """A network, samples per step, and servers."""

    network: str
    batch: int
    num_servers: int

    def __str__(self) -> str:
        return f"{self.network}-{self.batch}-{self.num_servers}"


CASES = tuple(Case(network, batch, m) for network in NETWORKS for batch in BATCHES for m in NUM_SERVERS)


@dataclass(frozen=True, slots=True)
class Row:
    """Steps per second of all workers: measured, and by four models.

    Attributes:
        runs: each as measured.
        simulated: each of them (rows) in each simulation.
        long_run: what `predict` says, as users get it.
    """

    num_workers: int
    runs: tuple[float, ...]
    simulated: NDArray[np.float64]
    long_run: float
    queueing: float
    cynthia: float

    @property
    def replayed(self) -> float:
        return statistics.mean(self.runs)

    @property
    def forecast(self) -> float:
        return float(self.simulated.mean())

    @property
    def band(self) -> tuple[float, float]:
        """Quantiles BAND of the simulated means: nine of ten runs of this job are within them by chance."""
        low, high = np.quantile(self.simulated.mean(axis=0), BAND)
        return float(low), float(high)

    @property
    def is_in_band(self) -> bool:
        low, high = self.band
        return low <= self.replayed <= high

    def error(self, model: str) -> float:
        """Signed, as a share of what was measured."""
        predicted: float = getattr(self, model)
        return predicted / self.replayed - 1.0


def job_of(trace: Trace, num_workers: int, num_servers: int) -> Job:
    """What is simulated: servers' links are limited, those of workers are not, as in `forecast_cluster`.

    No stream is as long as HTTP/2's window of the paper (28 MB), so flow control has no effect.
    """
    workers = (Links(math.inf, math.inf),) * num_workers
    servers = (Links(BYTES_PER_S, BYTES_PER_S),) * num_servers
    return Job(trace, Cluster(workers, servers), settings=Settings(num_steps=NUM_SIMULATED))


def train(cluster: TensorFlowCluster, num_workers: int, window: Window) -> float:
    """Steps per second of a run."""
    return window.steps_per_s(cluster.train(num_workers, window.seconds, window.apart_s))


def train_alone(cluster: TensorFlowCluster) -> float:
    """Steps per second of one worker."""
    return train(cluster, 1, Window(0.0, ALONE_S / 4, ALONE_S))


def windows_of(num_workers: int, alone: float) -> list[Window]:
    """Of all runs.

    Args:
        alone: steps per second of one worker alone.
    """
    apart_s = 1.0 / (alone * num_workers)
    return [Window(spread * apart_s, WARM_UP_S, TRAINED_S) for spread in SPREADS]


def row_of(cluster: TensorFlowCluster, trace: Trace, case: Case, num_workers: int, alone: float) -> Row:
    """Measure, and ask the models."""
    windows = windows_of(num_workers, alone)
    job = job_of(trace, num_workers, case.num_servers)
    return Row(
        num_workers,
        tuple(train(cluster, num_workers, window) for window in windows),
        np.array(
            [
                window.simulated(job, alone, NUM_REPEATS, NUM_REPEATS * position)
                for position, window in enumerate(windows)
            ]
        ),
        predict(job, with_limit=False).samples_per_s.value / case.batch,
        queueing(phases_of(job), num_workers, 1),
        cynthia(job, num_workers) / case.batch,
    )


def show(row: Row, case: Case) -> None:
    """Print a row of a case's table."""
    low, high = row.band
    each = zip(row.runs, row.simulated, strict=True)
    print(
        f"{case!s:14} {row.num_workers:3} {row.replayed:7.3f} {row.forecast:9.3f} "
        f"{row.error('forecast'):+7.1%} {low:6.3f}-{high:6.3f} "
        f"{row.error('long_run'):+9.1%} {row.error('queueing'):+7.1%} "
        f"{row.error('cynthia'):+8.1%}  {' '.join(f'{run:.2f}/{found.mean():.2f}' for run, found in each)}",
        flush=True,
    )


def calibrated(
    cluster: TensorFlowCluster, trace: Trace, case: Case, order: str = "fifo"
) -> tuple[Trace, float]:
    """The trace with what a step of one worker takes besides, as measured on the cluster.

    Returns: it, and steps per second of one worker.
    """
    cluster.train(max(WORKERS), FIRST_S)
    alone = train_alone(cluster)
    job = job_of(trace, 1, case.num_servers)
    job = replace(job, settings=replace(job.settings, order=order))
    overhead_s = max(step_overhead(job, case.batch * alone), 0.0)
    print(f"\n{case}: {1e3 * overhead_s:.1f} of {1e3 / alone:.1f} ms are not in the trace", flush=True)
    return with_step_overhead(trace, overhead_s), alone


def compared(cluster: TensorFlowCluster, case: Case, directory: Path) -> tuple[list[Row], dict[int, float]]:
    """Record, forecast and replay a case.

    Returns: a row for each number of workers; and by number, by how much replays differ from workers that
    compute for real, as a share.
    """
    plan = {"num_servers": case.num_servers, "network": case.network, "batch": case.batch}
    cluster.build(MOST_REAL, name=f"{case.network}_{case.batch}_{case.num_servers}", **plan)
    steps, path = directory / "steps.json", directory / "trace.jsonl"
    cluster.record(RECORDED, steps)
    cluster.train(MOST_REAL, FIRST_S)
    computed = {1: train_alone(cluster)}
    for count in range(2, MOST_REAL + 1):
        windows = windows_of(count, computed[1])
        computed[count] = statistics.mean(train(cluster, count, each) for each in windows)
    trace = trace_of_run_metadata(json.loads(steps.read_text(encoding="utf-8")), case.batch)
    write_trace(path, trace)
    name = f"replay_{case.network}_{case.batch}_{case.num_servers}"
    cluster.build(max(WORKERS), name=name, num_servers=case.num_servers, trace=str(path))
    trace, alone = calibrated(cluster, trace, case)
    rows = []
    print(HEAD, flush=True)
    for count in WORKERS:
        rows.append(row_of(cluster, trace, case, count, alone))
        show(rows[-1], case)
    replayed = {1: alone} | {row.num_workers: row.replayed for row in rows}
    differences = {count: replayed[count] / real - 1.0 for count, real in computed.items()}
    for count, difference in differences.items():
        print(
            f"computed for real, W = {count}: {computed[count]:.3f}/s, replay {difference:+.1%}", flush=True
        )
    return rows, differences


def measure(cases: Sequence[Case] = CASES) -> dict[str, float]:
    """Errors of the forecast and of its rivals, as shares of the real throughput."""
    rows: list[Row] = []
    replay_errors: dict[int, list[float]] = {}
    with (
        tempfile.TemporaryDirectory() as name,
        tensorflow_cluster(max(WORKERS), max(case.num_servers for case in cases), BYTES_PER_S) as cluster,
    ):
        for case in cases:
            found, differences = compared(cluster, case, Path(name))
            rows += found
            for count, difference in differences.items():
                replay_errors.setdefault(count, []).append(abs(difference))
    figures = {"tf_in_band": statistics.mean(row.is_in_band for row in rows)}
    for key, model in MODELS.items():
        errors = [abs(row.error(model)) for row in rows]
        figures[f"{key}_error_median"] = statistics.median(errors)
        figures[f"{key}_error_max"] = max(errors)
    for count, errors in replay_errors.items():
        figures[f"tf_replay_error_{count}_median"] = statistics.median(errors)
        figures[f"tf_replay_error_{count}_max"] = max(errors)
    return figures


def main() -> None:
    """Measure the named cases."""
    known = {str(case): case for case in CASES}
    unknown = [name for name in sys.argv[1:] if name not in known]
    if unknown:
        raise SystemExit(f"case: got {unknown[0]!r}, allowed: {', '.join(known)}")
    print(json.dumps(measure([known[name] for name in sys.argv[1:]] or CASES)))


if __name__ == "__main__":
    main()

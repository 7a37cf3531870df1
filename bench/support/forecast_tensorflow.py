"""Forecasts against real TensorFlow parameter servers whose links are limited ([ASGD] Sec. 4.2, Sec. 5).

    python -m support.forecast_tensorflow alexnet-64-1 vgg-32-2      # network, batch, servers: only these

A case takes some three minutes: one worker trains and is recorded; a forecast is made of that; then one to
eight workers replay the recorded computation with waits, and move real parameters and updates.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.forecast_cluster import TensorFlowCluster, tensorflow_cluster

from hpcbal.forecast import Settings
from hpcbal.forecast.cluster import Cluster, Links
from hpcbal.forecast.overhead import with_step_overhead
from hpcbal.forecast.prediction import WARM_UP, Job, step_overhead
from hpcbal.forecast.rivals import cynthia, phases_of, queueing
from hpcbal.forecast.run_metadata import trace_of_run_metadata
from hpcbal.forecast.trace import Trace
from hpcbal.forecast.trace_file import write_trace

BYTES_PER_S = 25e6
"""200 Mbit/s. The relay and gRPC copy every byte several times on two cores; 1 Gbps leaves them no room."""
RECORDED = 20
COMPUTED_S = 8.0
WARM_UP_S, MEASURED_S = 6.0, 14.0
NUM_SIMULATED = 1000

NETWORKS = ("alexnet", "googlenet", "resnet", "vgg")
BATCHES = (32, 64)
NUM_SERVERS = (1, 2)
WORKERS = tuple(range(1, 9))
MOST_REAL = 2
"""Workers that compute for real, as a check of the replay; there are two cores."""

BESIDE = {
    "tf_error_median": ("<= 0.10 (max)", "0.05"),
    "tf_error_max": ("0.10, once 0.20", "0.10"),
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
    """Steps per second of all workers: measured, and by three models."""

    num_workers: int
    replayed: float
    forecast: float
    queueing: float
    cynthia: float

    def error(self, model: str) -> float:
        """Signed, as a share of what was measured."""
        predicted: float = getattr(self, model)
        return predicted / self.replayed - 1.0


def steps_per_s(ends: Sequence[Sequence[float]], warm_up_s: float) -> float:
    """Of all workers together, while all of them train."""
    begin = max(each[0] for each in ends) + warm_up_s
    end = min(each[-1] for each in ends)
    insides = [[at for at in each if begin <= at <= end] for each in ends]
    return sum((len(inside) - 1) / (inside[-1] - inside[0]) for inside in insides)


def job_of(trace: Trace, num_workers: int, num_servers: int) -> Job:
    """What is simulated: servers' links are limited, those of workers are not, as in `forecast_cluster`.

    No stream is as long as HTTP/2's window of the paper (28 MB), so flow control has no effect.
    """
    workers = (Links(math.inf, math.inf),) * num_workers
    servers = (Links(BYTES_PER_S, BYTES_PER_S),) * num_servers
    return Job(trace, Cluster(workers, servers), settings=Settings(num_steps=NUM_SIMULATED))


def row_of(trace: Trace, case: Case, num_workers: int, replayed: float) -> Row:
    """One measurement, and the models beside it."""
    job = job_of(trace, num_workers, case.num_servers)
    return Row(
        num_workers,
        replayed,
        job.run().steps_per_s(WARM_UP),
        queueing(phases_of(job), num_workers, 1),
        cynthia(job, num_workers) / case.batch,
    )


def compared(cluster: TensorFlowCluster, case: Case, directory: Path) -> tuple[list[Row], dict[int, float]]:
    """Record, forecast and replay a case.

    Returns: a row for each number of workers, and steps per second with real computation by workers.
    """
    plan = {"num_servers": case.num_servers, "network": case.network, "batch": case.batch}
    cluster.build(MOST_REAL, name=f"{case.network}_{case.batch}_{case.num_servers}", **plan)
    steps, path = directory / "steps.json", directory / "trace.jsonl"
    cluster.record(RECORDED, steps)
    computed: dict[int, float] = {}
    for count in range(1, MOST_REAL + 1):
        apart_s = 1.0 / (computed[1] * count) if computed else 0.0
        computed[count] = steps_per_s(cluster.train(count, COMPUTED_S, apart_s), COMPUTED_S / 4)
    trace = trace_of_run_metadata(json.loads(steps.read_text(encoding="utf-8")), case.batch)
    write_trace(path, trace)
    overhead_s = step_overhead(job_of(trace, 1, case.num_servers), case.batch * computed[1])
    trace = with_step_overhead(trace, overhead_s)
    print(f"\n{case}: {1e3 * overhead_s:.1f} of {1e3 / computed[1]:.1f} ms are not in the trace", flush=True)
    name = f"replay_{case.network}_{case.batch}_{case.num_servers}"
    cluster.build(max(WORKERS), name=name, num_servers=case.num_servers, trace=str(path))
    rows = []
    print(f"\n{case}   W  real/s  forecast   error     Lin  Cynthia", flush=True)
    for count in WORKERS:
        ends = cluster.train(count, WARM_UP_S + MEASURED_S, apart_s=1.0 / (computed[1] * count))
        row = row_of(trace, case, count, steps_per_s(ends, WARM_UP_S))
        rows.append(row)
        print(
            f"{'':{len(str(case))}} {count:3} {row.replayed:7.3f} {row.forecast:9.3f} "
            f"{row.error('forecast'):+7.1%} {row.error('queueing'):+7.1%} {row.error('cynthia'):+8.1%}",
            flush=True,
        )
    for count, real in computed.items():
        replayed = next(row.replayed for row in rows if row.num_workers == count)
        print(f"computed for real, W = {count}: {real:.3f}/s, replay {replayed / real - 1:+.1%}", flush=True)
    return rows, computed


def measure(cases: Sequence[Case] = CASES) -> dict[str, float]:
    """Errors of the forecast and of its rivals, as shares of the real throughput."""
    rows: list[Row] = []
    replay_errors: dict[int, list[float]] = {}
    with (
        tempfile.TemporaryDirectory() as name,
        tensorflow_cluster(max(WORKERS), max(case.num_servers for case in cases), BYTES_PER_S) as cluster,
    ):
        for case in cases:
            found, computed = compared(cluster, case, Path(name))
            rows += found
            for row in found:
                if row.num_workers in computed:
                    error = abs(row.replayed / computed[row.num_workers] - 1.0)
                    replay_errors.setdefault(row.num_workers, []).append(error)
    figures = {}
    for key, model in (("tf", "forecast"), ("tf_lin", "queueing"), ("tf_cynthia", "cynthia")):
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

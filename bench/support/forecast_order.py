"""What an enforced order of transfers brings: forecast beside real TensorFlow ([ASGD] Sec. 4.2, Fig. 18).

    python -m support.forecast_order alexnet-32-1      # only these cases

As for the forecasts of throughput, one worker trains and is recorded, and workers replay its computation.
Here they do so in the order of TIC and in its reverse, which servers keep to: a worker tells them when it has
asked for all parameters, and they send them one after the other. What that takes is measured with one worker,
and added to the forecast.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from support.forecast_cluster import TensorFlowCluster, tensorflow_cluster
from support.forecast_tensorflow import (
    BYTES_PER_S,
    CASES,
    NUM_REPEATS,
    Case,
    calibrated,
    job_of,
    train,
    windows_of,
)

from hpcbal.forecast.run_metadata import trace_of_run_metadata
from hpcbal.forecast.trace_file import write_trace

RECORDED = 20

ORDERS = ("tic", "reverse")
WORKERS = (2, 4, 8)
DEFAULT = ("alexnet-32-1", "vgg-64-1")

BESIDE = {
    "tf_order_error_median": ("0.10 (max)", ""),
    "tf_order_error_max": ("0.10", ""),
}
"""Key -> (the paper's figure, the limit)."""


def compared(cluster: TensorFlowCluster, case: Case, folder: Path) -> list[float]:
    """Replay a case in each order; returns the signed errors of the forecast."""
    plan = {"num_servers": case.num_servers, "network": case.network, "batch": case.batch}
    cluster.build(1, name=f"order_{case.network}_{case.batch}", **plan)
    steps, path = folder / "steps.json", folder / "trace.jsonl"
    cluster.record(RECORDED, steps)
    trace = trace_of_run_metadata(json.loads(steps.read_text(encoding="utf-8")), case.batch)
    write_trace(path, trace)
    errors = []
    print(f"\n{case}  order      W  real/s  forecast   error", flush=True)
    for order in ORDERS:
        name = f"{order}_{case.network}_{case.batch}_{case.num_servers}"
        cluster.build(max(WORKERS), name=name, num_servers=case.num_servers, trace=str(path), order=order)
        ordered, alone = calibrated(cluster, trace, case, order)
        for count in WORKERS:
            job = job_of(ordered, count, case.num_servers)
            job = replace(job, settings=replace(job.settings, order=order))
            windows = windows_of(count, alone)
            real = statistics.mean(train(cluster, count, window) for window in windows)
            forecast = statistics.mean(
                float(window.simulated(job, alone, NUM_REPEATS).mean()) for window in windows
            )
            errors.append(forecast / real - 1.0)
            print(
                f"{'':{len(str(case))}}  {order:8} {count:3} {real:7.3f} {forecast:9.3f} {errors[-1]:+7.1%}",
                flush=True,
            )
    return errors


def measure(cases: Sequence[str] = DEFAULT) -> dict[str, float]:
    """Errors of the forecast of enforced orders."""
    known = {str(case): case for case in CASES}
    chosen = [known[name] for name in cases]
    servers = max(case.num_servers for case in chosen)
    with (
        tempfile.TemporaryDirectory() as folder,
        tensorflow_cluster(max(WORKERS), servers, BYTES_PER_S) as cluster,
    ):
        errors = [abs(error) for case in chosen for error in compared(cluster, case, Path(folder))]
    return {"tf_order_error_median": statistics.median(errors), "tf_order_error_max": max(errors)}


def main() -> None:
    """Measure the named cases."""
    known = [str(case) for case in CASES]
    unknown = [name for name in sys.argv[1:] if name not in known]
    if unknown:
        raise SystemExit(f"case: got {unknown[0]!r}, allowed: {', '.join(known)}")
    print(json.dumps(measure(sys.argv[1:] or DEFAULT)))


if __name__ == "__main__":
    main()

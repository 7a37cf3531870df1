"""When transfers of parameters end within a step: forecast beside real TensorFlow ([ASGD] Table 1).

    python -m support.forecast_streams alexnet resnet      # only these networks

One worker trains and is recorded, as for the forecasts of throughput. Each recorded step is then simulated
alone. The error of a transfer is |forecast / recorded - 1| of its end, counted from the first request of the
step. Everything before the first byte, a millisecond or two, is missing from the forecast, which is much for
transfers that end early: `_late` leaves out those that end within the first 10 ms.

`first_order` has all transfers in the order of the first step, as if servers kept to one.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from support.forecast_cluster import TensorFlowCluster, tensorflow_cluster
from support.forecast_tensorflow import BYTES_PER_S, NETWORKS

from hpcbal.forecast import Settings
from hpcbal.forecast.cluster import Cluster, Links
from hpcbal.forecast.replaying import Chunk
from hpcbal.forecast.run_metadata import Step, arrivals_of, trace_of_run_metadata
from hpcbal.forecast.simulation import simulate
from hpcbal.forecast.trace import Resource, Trace

RECORDED = 100
BATCH = 32
LATE_S = 0.010

PAPER = {
    "alexnet": "0.018, 0.012, 0.034, 0.47",
    "googlenet": "0.017, 0.011, 0.037, 0.76",
    "resnet": "0.013, 0.009, 0.023, 0.72",
}
"""[ASGD] Table 1, CPU cluster: mean, median, 95th percentile and maximum; `resnet` is ResNet-50 there."""

BESIDE = {
    **{f"stream_end_error_late_median_{name}": (row.split(", ")[1], "") for name, row in PAPER.items()},
    **{f"stream_end_error_late_p95_{name}": (row.split(", ")[2], "") for name, row in PAPER.items()},
}
"""Key -> (the paper's figure, the limit)."""

Floats = NDArray[np.float64]


def ends_of_step(trace: Trace, step: int, *, keeps_order: bool = True) -> dict[str, float]:
    """When the downlink transfers of a recorded step end in a simulation of it alone, by name.

    Args:
        keeps_order: of this step; otherwise the order is that of the first step.
    """
    orders = trace.downlink_orders
    assert orders is not None
    shown = step if keeps_order else 0
    alone = replace(
        trace, durations_s=trace.durations_s[[step]], downlink_orders=np.ascontiguousarray(orders[[shown]])
    )
    cluster = Cluster((Links(math.inf, math.inf),), (Links(BYTES_PER_S, BYTES_PER_S),))
    ends: dict[str, float] = {}

    def note(chunk: Chunk) -> None:
        operation = trace.operations[chunk.operation]
        if operation.resource is Resource.DOWNLINK:
            ends[operation.name] = chunk.end_s

    simulate(alone, cluster, Settings(num_steps=1), note)
    return ends


def errors_of(steps: Sequence[Step], *, keeps_order: bool = True) -> tuple[Floats, Floats]:
    """Of all downlink transfers of all steps: the errors of their ends, and the recorded ends in seconds."""
    trace = trace_of_run_metadata(steps, BATCH)
    errors, recorded = [], []
    for number, step in enumerate(steps):
        ends = ends_of_step(trace, number, keeps_order=keeps_order)
        for name, end_s in arrivals_of(step).items():
            errors.append(abs(ends[name] / end_s - 1.0))
            recorded.append(end_s)
    return np.array(errors), np.array(recorded)


def recorded_steps(cluster: TensorFlowCluster, network: str, file: Path) -> list[Step]:
    """Steps of one worker."""
    cluster.build(1, name=f"{network}_streams", num_servers=1, network=network, batch=BATCH)
    cluster.record(RECORDED, file)
    steps: list[Step] = json.loads(file.read_text(encoding="utf-8"))
    return steps


def measure(networks: Sequence[str] = NETWORKS) -> dict[str, float]:
    """Errors by network; the whole of Table 1 is printed."""
    figures: dict[str, float] = {}
    print(f"{'':22} {'mean':>7} {'median':>7} {'95 %':>7} {'max':>7}   paper")
    with tempfile.TemporaryDirectory() as folder, tensorflow_cluster(1, 1, BYTES_PER_S) as cluster:
        for network in networks:
            steps = recorded_steps(cluster, network, Path(folder) / f"{network}.json")
            errors, ends_s = errors_of(steps)
            for kind, found in (
                ("", errors),
                ("_late", errors[ends_s > LATE_S]),
                ("_first_order", errors_of(steps, keeps_order=False)[0]),
            ):
                row = {
                    "mean": float(found.mean()),
                    "median": float(np.median(found)),
                    "p95": float(np.quantile(found, 0.95)),
                    "max": float(found.max()),
                }
                figures |= {f"stream_end_error{kind}_{key}_{network}": value for key, value in row.items()}
                shown = " ".join(f"{value:7.3f}" for value in row.values())
                paper = PAPER.get(network, "none") if kind == "_late" else ""
                print(f"{network + kind.replace('_', ' '):22} {shown}   {paper}", flush=True)
    return figures


def main() -> None:
    """Measure the named networks."""
    unknown = [name for name in sys.argv[1:] if name not in NETWORKS]
    if unknown:
        raise SystemExit(f"network: got {unknown[0]!r}, allowed: {', '.join(NETWORKS)}")
    print(json.dumps(measure(sys.argv[1:] or NETWORKS)))


if __name__ == "__main__":
    main()

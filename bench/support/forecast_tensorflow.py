"""Forecasts against real TensorFlow parameter servers whose links are limited ([ASGD] Sec. 4.2, 4.3)."""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hpcbal.forecast import Settings, like_machines, simulate
from hpcbal.forecast.prediction import Job
from hpcbal.forecast.rivals import cynthia, phases_of, queueing
from hpcbal.forecast.run_metadata import trace_of_run_metadata
from hpcbal.forecast.trace import Trace
from hpcbal.forecast.trace_file import write_trace

BYTES_PER_S = 25e6
"""200 Mbit/s. The relay and gRPC copy every byte several times on two cores; 1 Gbps leaves them no room."""
SECONDS = 12.0
CASES = (("alexnet", 64),)
WORKERS = (1, 2, 4)
RECORDED = 20
WARM_UP_STEPS = 5

BESIDE = {"tf_error_median": ("0.10", "0.05"), "tf_error_max": ("", "0.10")}
"""Key -> (the paper's figure, the limit)."""


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextmanager
def process(module: str, plan: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """A helper that ends when its input does."""
    root = Path(__file__).parents[2]
    env = os.environ | {
        "PYTHONPATH": f"{root}:{root / 'bench'}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "GRPC_ENABLE_FORK_SUPPORT": "0",
        "no_proxy": "127.0.0.1",
    }
    child = subprocess.Popen(
        [sys.executable, "-m", module, json.dumps(plan)],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def line_of(child: subprocess.Popen[str]) -> str:
    """The next line that the helper prints."""
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise RuntimeError(f"a helper ended with {child.wait()} before it answered")
    return line


def run(num_workers: int, num_servers: int, plan: dict[str, Any]) -> list[list[float]]:
    """Train through the relay; returns when the steps of each worker ended, in seconds."""
    ports = free_ports(num_workers + num_servers)
    workers, servers = ports[:num_workers], ports[num_workers:]
    links = {f"{way}{s}": BYTES_PER_S for way in ("down", "up") for s in range(num_servers)}
    routes = [
        route
        for w in workers
        for s, port in enumerate(servers)
        for route in (
            (f"127.0.0.1:{port}", f"up{s}", f"down{s}"),
            (f"127.0.0.1:{w}", f"down{s}", f"up{s}"),
        )
    ]
    with ExitStack() as stack:
        relay = stack.enter_context(process("support.forecast_relay", {"links": links, "routes": routes}))
        through = iter(json.loads(line_of(relay)))
        pairs = {
            (w, s): (next(through), next(through)) for w in range(num_workers) for s in range(num_servers)
        }
        children = []
        for job, count in (("ps", num_servers), ("worker", num_workers)):
            for task in range(count):
                cluster = {
                    "ps": [servers[s] if job == "ps" else pairs[task, s][0] for s in range(num_servers)],
                    "worker": [
                        workers[w] if job == "worker" else pairs[w, task][1] for w in range(num_workers)
                    ],
                }
                named = {name: [f"127.0.0.1:{p}" for p in each] for name, each in cluster.items()}
                own = plan | {"job": job, "task": task, "cluster": named}
                children.append(stack.enter_context(process("support.forecast_peer", own)))
        for child in children:
            line_of(child)
        training = children[num_servers:]
        for child in training:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        ends = [json.loads(line_of(child)) for child in training]
        if "record" in plan:
            assert training[0].stdin is not None
            training[0].stdin.close()
            training[0].wait(60)
        return ends


def steps_per_s(ends: Sequence[Sequence[float]]) -> float:
    """Of all workers together, while all of them train, without the first steps."""
    begin = max(each[WARM_UP_STEPS - 1] for each in ends)
    end = min(each[-1] for each in ends)
    return sum(
        (len(inside) - 1) / (inside[-1] - inside[0])
        for each in ends
        if (inside := [at for at in each if begin <= at <= end])
    )


def profile(network: str, batch: int, num_servers: int, directory: Path) -> Trace:
    """Record one worker with real computation."""
    path = directory / "steps.json"
    run(1, num_servers, {"network": network, "batch": batch, "record": str(path), "steps": RECORDED})
    return trace_of_run_metadata(json.loads(path.read_text(encoding="utf-8")), batch)


def measure() -> dict[str, float]:
    """Errors of the forecast and of its rivals, as shares of the real throughput."""
    errors: dict[str, list[float]] = {"tf": [], "lin": [], "cynthia": []}
    print("network   batch   W  real/s  forecast  error    Lin  Cynthia", flush=True)
    with tempfile.TemporaryDirectory() as name:
        for network, batch in CASES:
            trace = profile(network, batch, 1, Path(name))
            path = Path(name) / "trace.jsonl"
            write_trace(path, trace)
            for count in WORKERS:
                real = steps_per_s(run(count, 1, {"trace": str(path), "seconds": SECONDS}))
                cluster = like_machines(count, 1, BYTES_PER_S)
                replay = simulate(trace, cluster, Settings(num_steps=500))
                job = Job(trace, cluster)
                rates = {
                    "tf": replay.steps_per_s(50),
                    "lin": queueing(phases_of(job), count, 1),
                    "cynthia": cynthia(job, count) / batch,
                }
                found = {key: abs(rate - real) / real for key, rate in rates.items()}
                for key, error in found.items():
                    errors[key].append(error)
                print(
                    f"{network:9} {batch:5} {count:3} {real:7.3f} {rates['tf']:9.3f} {found['tf']:6.1%} "
                    f"{found['lin']:6.1%} {found['cynthia']:8.1%}",
                    flush=True,
                )
    return {
        f"{key}_error_{what}": of(values)
        for key, values in errors.items()
        for what, of in (("median", statistics.median), ("max", max))
    }

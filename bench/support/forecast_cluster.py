"""A TensorFlow cluster on this machine whose servers' links a relay limits."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

PORTS = range(15_000, 30_000)
"""The kernel hands out higher ports. The relay lets it choose, so its ports are never among these."""


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:  # somebody listens
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError(f"only {len(found)} ports are free from {PORTS.start} to {PORTS.stop}")


@contextmanager
def process(module: str, plan: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """A helper that is stopped in the end."""
    root = Path(__file__).parents[2]
    env = os.environ | {
        "PYTHONPATH": f"{root}:{root / 'bench'}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "GRPC_ENABLE_FORK_SUPPORT": "0",
        "no_proxy": "127.0.0.1",
    }
    child = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", module, json.dumps(plan)],
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


def tell(child: subprocess.Popen[str], wanted: dict[str, Any]) -> None:
    """Ask a helper for something."""
    assert child.stdin is not None
    child.stdin.write(json.dumps(wanted) + "\n")
    child.stdin.flush()


def answer_of(child: subprocess.Popen[str]) -> Any:
    """What a helper says next."""
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise RuntimeError(f"a helper ended with {child.wait()} before it answered")
    return json.loads(line)


class TensorFlowCluster:
    """Its workers; servers and the relay need no orders."""

    def __init__(self, workers: Sequence[subprocess.Popen[str]]) -> None:
        self._workers = workers

    def build(self, num_workers: int, **plan: Any) -> None:
        """Give the first workers a graph; see `forecast_peer.Plan`."""
        self._ask([{"do": "build", **plan}] * num_workers)

    def train(self, num_workers: int, seconds: float, apart_s: float = 0.0) -> list[list[float]]:
        """Let the first workers train at the same time; returns when the steps of each ended.

        Args:
            apart_s: each starts so much later than the one before. Workers that start together keep in step
                for long ([ASGD] Fig. 15).
        """
        orders = [{"do": "train", "seconds": seconds, "after_s": apart_s * w} for w in range(num_workers)]
        return self._ask(orders)

    def record(self, steps: int, file: Path) -> None:
        """Record steps of the first worker alone."""
        self._ask([{"do": "record", "steps": steps, "file": str(file)}])

    def _ask(self, wanted: Sequence[dict[str, Any]]) -> list[Any]:
        asked = self._workers[: len(wanted)]
        for worker, order in zip(asked, wanted, strict=True):
            tell(worker, order)
        return [answer_of(worker) for worker in asked]


@contextmanager
def tensorflow_cluster(num_workers: int, num_servers: int, bytes_per_s: float) -> Iterator[TensorFlowCluster]:
    """Start all tasks. Each direction of each server's link carries as many bytes per second, whatever worker
    and connection they belong to; workers have no limits of their own."""
    ports = free_ports(num_workers + num_servers)
    workers, servers = ports[:num_workers], ports[num_workers:]
    links = {f"{way}{s}": bytes_per_s for way in ("down", "up") for s in range(num_servers)}
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
        through = iter(answer_of(relay))
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
                plan = {"job": job, "task": task, "cluster": named}
                children.append(stack.enter_context(process("support.forecast_peer", plan)))
        for child in children:
            answer_of(child)
        yield TensorFlowCluster(children[num_servers:])

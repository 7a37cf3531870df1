"""One task of a TensorFlow job with asynchronous parameter servers, as a process of its own.

    python -m support.forecast_peer TASK      # JSON: job, task, cluster

A server serves until its input ends. A worker answers every line of JSON on its input with a line of JSON:

    {"do": "build", ...}     a graph, see `Plan`; the first worker sets the variables
    {"do": "train", "seconds": 9.0, "after_s": 0.1}   the times at which steps ended
    {"do": "record", "steps": 20, "file": F}   writes the steps to F
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
from support.forecast_networks import loss_of
from support.forecast_replay import Replayed, replayed

from hpcbal.forecast.trace_file import read_trace

v1 = tf.compat.v1
WARM_UP_STEPS = 5
"""Before recording: TensorFlow places and measures its kernels in the first steps."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a worker trains.

    Attributes:
        name: of the variables; no other plan of the job has it.
        num_servers: that hold variables, the first of the cluster.
        network, batch: of real computation.
        trace: file with the trace to replay; empty: compute.
        order: in which servers send parameters in a replay; empty: as TensorFlow asks for them.
    """

    name: str
    num_servers: int
    network: str = ""
    batch: int = 0
    trace: str = ""
    order: str = ""


def config_of(job: str, task: int) -> Any:
    """No rewriting of graphs, and no other worker to wait for; workers run one operation at a time."""
    config = v1.ConfigProto(
        device_filters=["/job:ps", f"/job:worker/task:{task}"], intra_op_parallelism_threads=1
    )
    if job == "worker":
        config.inter_op_parallelism_threads = 1
    config.graph_options.optimizer_options.opt_level = v1.OptimizerOptions.L0
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config


class Smallest:
    """Places each variable on the server that holds the fewest bytes so far ([ASGD] Sec. 5)."""

    def __init__(self, num_servers: int) -> None:
        self._held = [0] * num_servers

    def __call__(self, operation: Any) -> int:
        server = self._held.index(min(self._held))
        self._held[server] += operation.outputs[0].shape.num_elements() or 0
        return server


def build_real(plan: Plan, task: int) -> Any:
    """The network itself."""
    devices = v1.train.replica_device_setter(
        ps_tasks=plan.num_servers,
        worker_device=f"/job:worker/task:{task}",
        ps_strategy=Smallest(plan.num_servers),
    )
    with v1.device(devices):
        with v1.variable_scope(plan.name):
            loss = loss_of(plan.network, plan.batch)
        return v1.train.GradientDescentOptimizer(1e-4).minimize(loss)


class Worker:
    """Builds and runs graphs."""

    def __init__(self, target: str, task: int) -> None:
        self._target, self._task = target, task
        self._session: Any = None
        self._train: Any = None
        self._replayed: Replayed | None = None

    def build(self, plan: Plan) -> str:
        """Replace the graph."""
        if self._session is not None:
            self._session.close()
        with tf.Graph().as_default() as graph:
            if plan.trace:
                trace = read_trace(Path(plan.trace))
                self._replayed = replayed(trace, plan.name, self._task, plan.order)
                self._train = self._replayed.train
            else:
                self._replayed = None
                self._train = build_real(plan, self._task)
            self._session = v1.Session(self._target, graph, config_of("worker", self._task))
            if self._task == 0:
                self._session.run(v1.global_variables_initializer())
        return "built"

    def train(self, seconds: float, after_s: float) -> list[float]:
        """Wait, then run steps; returns when each ended, by the clock that all processes share."""
        time.sleep(after_s)
        ends = []
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._step()
            ends.append(time.monotonic())
        return ends

    def record(self, steps: int, file: str) -> str:
        """Write what TensorFlow records of some steps."""
        recorded: list[dict[str, Any]] = []
        for _ in range(WARM_UP_STEPS):
            self._step()
        for _ in range(steps):
            metadata = v1.RunMetadata()
            options = v1.RunOptions(
                trace_level=v1.RunOptions.FULL_TRACE, output_partition_graphs=not recorded
            )
            self._step(options=options, run_metadata=metadata)
            recorded.append(MessageToDict(metadata, preserving_proto_field_name=True))
        Path(file).write_text(json.dumps(recorded), encoding="utf-8")
        return "recorded"

    def _step(self, **named: Any) -> None:
        if self._replayed is not None:
            self._replayed.draw()
        self._session.run(self._train, **named)


def main() -> None:
    task = json.loads(sys.argv[1])
    v1.disable_eager_execution()
    v1.disable_resource_variables()
    cluster = tf.train.ClusterSpec(task["cluster"])
    config = config_of(task["job"], task["task"])
    server = v1.train.Server(cluster, job_name=task["job"], task_index=task["task"], config=config)
    print(json.dumps("ready"), flush=True)
    if task["job"] == "ps":
        sys.stdin.read()
        return
    worker = Worker(server.target, task["task"])
    for line in sys.stdin:
        wanted = json.loads(line)
        match wanted.pop("do"):
            case "build":
                answer: object = worker.build(Plan(**wanted))
            case "train":
                answer = worker.train(**wanted)
            case "record":
                answer = worker.record(**wanted)
            case other:
                raise ValueError(f"do: got {other!r}, allowed: 'build', 'train', 'record'")
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

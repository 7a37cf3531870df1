"""One task of a TensorFlow job with asynchronous parameter servers, as a process of its own.

    python -m support.forecast_peer TASK      # JSON: job, task, cluster, network, batch, and how to compute

A server serves until its input ends. A worker prints `ready`, waits for a line, trains, and prints a line of
JSON: the times at which steps ended, or the recorded steps.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
from support.forecast_networks import loss_of
from support.forecast_segments import segments_of

from hpcbal.forecast.trace import Resource
from hpcbal.forecast.trace_file import read_trace

v1 = tf.compat.v1
WARM_UP = 5


def config_of(task: int) -> Any:
    """One thread for operations, no rewriting of graphs, and no other worker to wait for."""
    config = v1.ConfigProto(
        device_filters=["/job:ps", f"/job:worker/task:{task}"], intra_op_parallelism_threads=1
    )
    config.graph_options.optimizer_options.opt_level = v1.OptimizerOptions.L0
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config


def build_real(plan: dict[str, Any], devices: Any) -> tuple[Any, Any]:
    """The network itself."""
    with v1.device(devices):
        loss = loss_of(plan["network"], plan["batch"])
        return v1.train.GradientDescentOptimizer(1e-4).minimize(loss), None


def build_replay(plan: dict[str, Any], devices: Any) -> tuple[Any, Any]:
    """The same transfers; computation waits as long as the recorded one took."""
    trace = read_trace(Path(plan["trace"]))
    segments = segments_of(trace)
    rng = np.random.default_rng(plan["task"])
    row = [0]

    def sleep_of(columns: list[int]) -> Any:
        seconds = trace.durations_s[:, columns].sum(axis=1)

        def sleep() -> np.float32:
            time.sleep(float(seconds[row[0]]))
            return np.float32(0.0)

        return sleep

    worker = f"/job:worker/task:{plan['task']}"
    received: dict[int, Any] = {}
    variables: dict[int, Any] = {}
    for position, operation in enumerate(trace.operations):
        if operation.num_bytes and operation.resource.is_link:
            size = operation.num_bytes // 4
            with tf.device(f"/job:ps/task:{operation.server}"):
                variables[position] = v1.get_variable(
                    f"v{position}", [size], initializer=v1.zeros_initializer(), use_resource=False
                )
            if operation.resource is Resource.DOWNLINK:
                with tf.device(worker):
                    received[position] = tf.identity(variables[position])
    updates, last = [], None
    for segment in segments:
        needs = [received[p] for p in segment.receives if p in received] + ([] if last is None else [last])
        with tf.device(worker), tf.control_dependencies(needs):
            last = v1.py_func(sleep_of(segment.computes), [], tf.float32, stateful=True)
        for position in segment.sends:
            if position in variables:
                with tf.device(worker), tf.control_dependencies([last]):
                    gradient = tf.identity(tf.zeros([trace.operations[position].num_bytes // 4]))
                with tf.device(f"/job:ps/task:{trace.operations[position].server}"):
                    updates.append(v1.assign_sub(variables[position], gradient).op)

    def draw() -> None:
        row[0] = int(rng.integers(trace.num_steps))

    return tf.group(*updates, *([] if last is None else [last])), draw


def main() -> None:
    plan = json.loads(sys.argv[1])
    v1.disable_eager_execution()
    v1.disable_resource_variables()
    cluster = tf.train.ClusterSpec(plan["cluster"])
    task = plan["task"]
    server = v1.train.Server(cluster, job_name=plan["job"], task_index=task, config=config_of(task))
    if plan["job"] == "ps":
        print("ready", flush=True)
        sys.stdin.read()
        return
    devices = v1.train.replica_device_setter(worker_device=f"/job:worker/task:{task}", cluster=cluster)
    build = build_replay if plan.get("trace") else build_real
    train, before = build(plan, devices)
    with v1.Session(server.target, config=config_of(task)) as session:
        if task == 0:
            session.run(v1.global_variables_initializer())
        print("ready", flush=True)
        sys.stdin.readline()
        ends: list[float] = []
        steps: list[dict[str, Any]] = []
        until = time.monotonic() + plan.get("seconds", 1e9)
        while time.monotonic() < until and len(ends) < plan.get("steps", 1e9) + WARM_UP:
            if before is not None:
                before()
            if plan.get("record") and len(ends) >= WARM_UP:
                metadata = v1.RunMetadata()
                options = v1.RunOptions(
                    trace_level=v1.RunOptions.FULL_TRACE, output_partition_graphs=not steps
                )
                session.run(train, options=options, run_metadata=metadata)
                steps.append(MessageToDict(metadata, preserving_proto_field_name=True))
            else:
                session.run(train)
            ends.append(time.monotonic())
        print(json.dumps(ends), flush=True)
        if plan.get("record"):
            Path(plan["record"]).write_text(json.dumps(steps), encoding="utf-8")
        sys.stdin.read()


if __name__ == "__main__":
    main()

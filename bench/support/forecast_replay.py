"""A TensorFlow graph with the transfers of a trace, whose computations only wait as long as recorded.

Waiting frees the core, so that two cores can stand for eight workers. A wait takes some 0.1 ms longer than it
should, and a step has up to a hundred of them: what one took too long the next ones wait less.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from support.forecast_segments import segments_of

from hpcbal.forecast.cluster import order_named
from hpcbal.forecast.trace import Resource, Trace

v1 = tf.compat.v1

ASKING_S = 0.005
"""Until a worker has asked for all parameters: some 2 ms through the relay."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The graph.

    Attributes:
        train: runs a step.
        draw: chooses the recorded step that the next one replays.
    """

    train: Any
    draw: Callable[[], None]


def replayed(trace: Trace, name: str, task: int, order: str = "") -> Replayed:
    """Build the graph of one worker in the graph that is current.

    Args:
        name: prefix of the variables.
        task: the worker's.
        order: in which servers send parameters, see `orders.ORDERS`; empty: as TensorFlow asks for them.
    """
    rng = np.random.default_rng(task)
    row = [0]
    late_s = [0.0]  # that waits have taken longer than they should

    def sleep_of(columns: list[int]) -> Callable[[], np.float32]:
        seconds = trace.durations_s[:, columns].sum(axis=1)

        def sleep() -> np.float32:
            began_s, wanted_s = time.perf_counter(), float(seconds[row[0]])
            if wanted_s > late_s[0]:
                time.sleep(wanted_s - late_s[0])
            late_s[0] += time.perf_counter() - began_s - wanted_s
            return np.float32(0.0)

        return sleep

    worker = f"/job:worker/task:{task}"
    received = _in_order(trace, name, worker, order) if order else _received(trace, name, worker)
    updates: list[Any] = []
    last: Any = None
    for segment in segments_of(trace):
        needs = [received[position] for position in segment.receives] + ([] if last is None else [last])
        with tf.device(worker), tf.control_dependencies(needs):
            last = tf.numpy_function(sleep_of(segment.computes), [], tf.float32)
        for position in segment.sends:
            operation = trace.operations[position]
            size = max(operation.num_bytes // 4, 1)
            with tf.device(worker):
                computed = tf.constant(np.zeros(size, np.float32))
                with tf.control_dependencies([last]):
                    gradient = tf.identity(computed)
            with tf.device(f"/job:ps/task:{operation.server}"):
                updates.append(v1.assign_sub(_variable(name, position, size), gradient).op)

    def draw() -> None:
        row[0] = int(rng.integers(trace.num_steps))

    return Replayed(tf.group(*updates, last), draw)


def _received(trace: Trace, name: str, worker: str) -> dict[int, Any]:
    """Parameters as they have reached the worker, by position. TensorFlow chooses their order."""
    received: dict[int, Any] = {}
    for position in trace.positions(Resource.DOWNLINK):
        operation = trace.operations[position]
        with tf.device(f"/job:ps/task:{operation.server}"):
            variable = _variable(name, position, max(operation.num_bytes // 4, 1))
            read = variable.read_value()
        with tf.device(worker):
            received[position] = tf.identity(read)
    return received


def _in_order(trace: Trace, name: str, worker: str, order: str) -> dict[int, Any]:
    """The same, sent in one order: each server reads one parameter after the other, and sends it at once.

    A server sends what was asked for as soon as it is there. So reading begins when the worker has asked for
    all parameters, of which it tells the servers.
    """

    def ask_first() -> np.float32:
        time.sleep(ASKING_S)
        return np.float32(0.0)

    with tf.device(worker):
        asked = tf.numpy_function(ask_first, [], tf.float32)
        asked.set_shape([])
    received: dict[int, Any] = {}
    last: dict[int, Any] = {}
    for position in order_named(order)(trace.operations, np.random.default_rng(0)):
        operation = trace.operations[position]
        with tf.device(f"/job:ps/task:{operation.server}"):
            if operation.server not in last:
                last[operation.server] = tf.identity(asked)
            variable = _variable(name, position, max(operation.num_bytes // 4, 1))
            with tf.control_dependencies([last[operation.server]]):
                last[operation.server] = read = variable.read_value()
        with tf.device(worker):
            received[position] = tf.identity(read)
    return received


def _variable(name: str, position: int, size: int) -> Any:
    return v1.get_variable(
        f"{name}/v{position}", [size], initializer=v1.zeros_initializer(), use_resource=False
    )

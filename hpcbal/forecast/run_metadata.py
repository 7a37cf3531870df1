"""Import what TensorFlow recorded of a step: the graphs of all tasks, stitched where they exchange tensors.

A step is a `RunMetadata` as JSON (`MessageToDict(..., preserving_proto_field_name=True)`), recorded with
`trace_level=FULL_TRACE` and `output_partition_graphs=True`. TensorFlow itself is not needed.
"""

from __future__ import annotations

import base64
import heapq
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcbal.forecast.trace import Resource, Trace, TracedOperation, TraceError

Step = Mapping[str, Any]
Timings = dict[tuple[str, str], tuple[float, float, int]]
"""By device and node: start and duration in seconds, and bytes."""
_LABEL = re.compile(r"(?P<tensor>\S+) from \S+ to (?P<receiver>\S+)$")
_EDGE = re.compile(r"^edge_\d+_")
_SENDS, _RECEIVES = frozenset({"_Send", "_HostSend"}), frozenset({"_Recv", "_HostRecv"})


@dataclass(slots=True)
class _Node:
    """A node of one task's graph; a receive that crosses tasks is a transfer.

    Attributes:
        key: device and name.
        kind: TensorFlow's operation.
        after: keys of the nodes it waits for.
        sender: device, of a transfer; otherwise empty.
        tensor: that a transfer moves.
        sends: of a worker's node that hands a tensor over to another task: how its transfer is measured.
    """

    key: tuple[str, str]
    kind: str
    device: str
    after: list[tuple[str, str]] = field(default_factory=list)
    sender: str = ""
    tensor: str = ""
    sends: tuple[str, str] | None = None

    @property
    def measured_as(self) -> tuple[str, str]:
        """Statistics name a transfer by its tensor, and when it was handed over by its start."""
        if self.sends is not None:
            return self.sends
        return (self.device, self.tensor) if self.sender else self.key


def trace_of_run_metadata(steps: Sequence[Step], samples_per_step: int) -> Trace:
    """The trace of recorded steps of one worker.

    A pair of send and receive becomes a transfer; computations keep their durations. Nodes without a
    duration vanish, and what waits for them waits for what they waited for. So do reads of parameters on a
    server, which take microseconds: a step starts with the downlink. Servers send in the order of requests,
    which differs from step to step. Transfers that end together may be recorded in another order: a small one
    that has waited for a large one is parsed first.

    A worker hands a tensor over when its executor comes to that, which may be long after it was computed. So
    this is an operation of its own, which takes no time, in the order in which it was recorded. A server that
    a step does not wait for may have no statistics of it: then the means of other steps stand in.

    Args:
        steps: at least one, all of the same graph.
        samples_per_step: the worker's batch size, >= 1.

    Raises:
        TraceError: no step, no graphs or statistics, a receive without its send, tasks that are neither `ps`
        nor `worker`, or a cycle.

    Source: [ASGD] Sec. 3.1, on how graphs of both sides are connected.
    """
    if not steps:
        raise TraceError("no step was recorded; record at least one")
    nodes = _stitched(steps[0])
    timings = _completed([_timings(step) for step in steps])
    operations: list[TracedOperation] = []
    columns: list[list[float]] = []
    downlinks: list[int] = []
    requests: list[list[float]] = []  # of each downlink transfer in each step
    ends_with: dict[tuple[str, str], tuple[int, ...]] = {}  # node -> operations that end it
    for node in _in_order(nodes, timings[0]):
        waits_for = tuple(sorted({position for before in node.after for position in ends_with[before]}))
        measured = [timing.get(node.measured_as, (0.0, 0.0, 0)) for timing in timings]
        hands_over = node.sends is not None
        column = [0.0 if hands_over else duration for _, duration, _ in measured]
        reads = not node.sender and _task(node.device)[0] == "ps" and not waits_for
        num_bytes = max(size for _, _, size in measured)
        if reads or not (node.sender or hands_over or any(column)):
            ends_with[node.key] = waits_for
            continue
        ends_with[node.key] = (len(operations),)
        operations.append(_operation(node, waits_for, num_bytes))
        columns.append(column)
        if operations[-1].resource is Resource.DOWNLINK:
            requests.append([start for start, _, _ in measured])
            downlinks.append(len(operations) - 1)
    orders = np.argsort(np.array(requests).reshape(len(downlinks), len(steps)).T, axis=1, kind="stable")
    return Trace(
        tuple(operations),
        np.array(columns, dtype=np.float64).T,
        samples_per_step,
        downlink_orders=np.array(downlinks, dtype=np.int64)[orders],
    )


def _operation(node: _Node, waits_for: tuple[int, ...], num_bytes: int) -> TracedOperation:
    job, task = _task(node.device)
    if not node.sender and job == "worker":
        name = node.key[1] if node.sends is None else f"hand over {node.sends[1]}"
        return TracedOperation(name, Resource.WORKER, waits_for)
    if not node.sender:
        return TracedOperation(node.key[1], Resource.SERVER, waits_for, 0, task)
    if job == "worker":
        variable = _EDGE.sub("", node.tensor).removesuffix("/read")
        server = _task(node.sender)[1]
        return TracedOperation(
            f"receive {node.tensor}", Resource.DOWNLINK, waits_for, num_bytes, server, variable
        )
    return TracedOperation(f"send {node.tensor}", Resource.UPLINK, waits_for, num_bytes, task)


def _task(device: str) -> tuple[str, int]:
    parts = dict(part.split(":", 1) for part in device.split("/") if part.count(":") == 1)
    job = parts.get("job", "")
    if job not in ("ps", "worker"):
        raise TraceError(f"device {device!r}: the job is {job!r}; allowed: 'ps', 'worker'")
    return job, int(parts.get("task", "0"))


def _stitched(step: Step) -> dict[tuple[str, str], _Node]:
    """All nodes of all tasks; every receive waits for its send."""
    nodes: dict[tuple[str, str], _Node] = {}
    sends: dict[tuple[str, str, str], tuple[str, str]] = {}
    receives: list[tuple[_Node, tuple[str, str, str]]] = []
    graphs = step.get("partition_graphs", [])
    if not graphs:
        raise TraceError("the step has no partition_graphs; record it with output_partition_graphs=True")
    for graph in graphs:
        for record in graph.get("node", []):
            device = record.get("device", "")
            node = _Node((device, record["name"]), record["op"], device)
            node.after = [(device, name.lstrip("^").split(":")[0]) for name in record.get("input", [])]
            node.after = list(dict.fromkeys(node.after))
            nodes[node.key] = node
            if node.kind in _SENDS | _RECEIVES:
                pair = _pair(record["attr"])
                if node.kind in _SENDS:
                    sends[pair] = node.key
                else:
                    receives.append((node, pair))
    for node, pair in receives:
        if pair not in sends:
            raise TraceError(f"{node.key[1]!r} receives {pair[2]!r}, but no task sends it")
        node.after.append(sends[pair])
        if _task(pair[0]) != _task(pair[1]):
            node.sender, node.tensor = pair[0], pair[2]
            if _task(pair[0])[0] == "worker":
                nodes[sends[pair]].sends = node.measured_as
    return nodes


def _pair(attributes: Mapping[str, Any]) -> tuple[str, str, str]:
    texts = [attributes[key]["s"] for key in ("send_device", "recv_device", "tensor_name")]
    sender, receiver, tensor = (base64.b64decode(text).decode() for text in texts)
    return sender, receiver, tensor


def _timings(step: Step) -> Timings:
    """(device, node) -> start and duration in seconds, bytes of the first output."""
    found: dict[tuple[str, str], tuple[float, float, int]] = {}
    for device in step.get("step_stats", {}).get("dev_stats", []):
        for record in device.get("node_stats", []):
            start = int(record.get("all_start_micros", 0)) + int(record.get("op_start_rel_micros", 0))
            micros = int(record.get("op_end_rel_micros", 0)) - int(record.get("op_start_rel_micros", 0))
            key = (device["device"], record["node_name"].split(":")[0])
            if key[1] == "RecvTensor":
                key = _received(record.get("timeline_label", ""))
            found[key] = (start * 1e-6, max(micros, 0) * 1e-6, _bytes(record))
    if not found:
        raise TraceError("the step has no statistics; record it with trace_level=FULL_TRACE")
    return found


def _completed(steps: Sequence[Timings]) -> list[Timings]:
    """The same with starts from the begin of each step, and with means where a step has no statistics."""
    begins = [min((start for start, _, _ in step.values() if start > 0), default=0.0) for step in steps]
    relative = [
        {key: (max(start - begin, 0.0), seconds, size) for key, (start, seconds, size) in step.items()}
        for step, begin in zip(steps, begins, strict=True)
    ]
    means: Timings = {}
    for key in {key for step in relative for key in step}:
        found = [step[key] for step in relative if key in step]
        start, seconds = (sum(each[i] for each in found) / len(found) for i in (0, 1))
        means[key] = start, seconds, max(size for _, _, size in found)
    return [means | step for step in relative]


def _received(label: str) -> tuple[str, str]:
    """The receiver and the tensor that a label names: `[8B] [1Mb/s] edge_4_w from DEVICE to DEVICE`."""
    match = _LABEL.search(label)
    if match is None:
        raise TraceError(f"transfer {label!r}: expected '[size] [rate] TENSOR from DEVICE to DEVICE'")
    return match["receiver"], match["tensor"]


def _bytes(record: Mapping[str, Any]) -> int:
    for output in record.get("output", []):
        allocation = output.get("tensor_description", {}).get("allocation_description", {})
        return int(allocation.get("requested_bytes", 0))
    return 0


def _in_order(nodes: Mapping[tuple[str, str], _Node], timing: Timings) -> Iterator[_Node]:
    """Topological order; among those that are ready, the one that ran first comes first."""
    missing = {key: len(node.after) for key, node in nodes.items()}
    dependents: dict[tuple[str, str], list[tuple[str, str]]] = {key: [] for key in nodes}
    for key, node in nodes.items():
        for before in node.after:
            if before not in nodes:
                raise TraceError(f"{key[1]!r} waits for {before[1]!r}, which no graph has")
            dependents[before].append(key)
    starts = {key: timing.get(node.measured_as, (0.0,))[0] for key, node in nodes.items()}
    ready = [(starts[key], key) for key, count in missing.items() if not count]
    heapq.heapify(ready)
    num_done = 0
    while ready:
        key = heapq.heappop(ready)[1]
        num_done += 1
        yield nodes[key]
        for later in dependents[key]:
            missing[later] -= 1
            if not missing[later]:
                heapq.heappush(ready, (starts[later], later))
    if num_done < len(nodes):
        raise TraceError(f"{len(nodes) - num_done} nodes wait for each other; loops cannot be imported")

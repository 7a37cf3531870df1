"""What one worker did, operation by operation: the only measurement that a forecast needs."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import InputError


class TraceError(InputError):
    """A trace is damaged, or does not describe steps that can be run."""


class Resource(enum.StrEnum):
    """What an operation uses; each operation uses exactly one ([ASGD] Sec. 2), or only passes time."""

    DOWNLINK = "downlink"
    """The server sends parameters to the worker."""
    WORKER = "worker"
    """The worker computes."""
    UPLINK = "uplink"
    """The worker sends updates to the server."""
    SERVER = "server"
    """The server applies updates."""
    DELAY = "delay"
    """Nothing: time passes, such as the latency of a message. Any number of delays pass side by side, and
    faster machines do not shorten them."""

    @property
    def is_link(self) -> bool:
        """Whether it moves bytes; if not, it computes or waits."""
        return self in (Resource.DOWNLINK, Resource.UPLINK)


MOST_SERVERS = 4096
MOST_BYTES = 2**60
"""Of one operation."""
MOST_SAMPLES = 2**53
"""Of one step."""
LONGEST_S = 1e9
"""Of one operation."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a step.

    Attributes:
        name: for people, and for errors.
        resource: what it uses.
        waits_for: positions in the trace of the operations that end before it starts; all are lower than its
            own.
        num_bytes: that it moves, at most MOST_BYTES; 0 unless it uses a link.
        server: of its link, its computation or its messages, from 0, below MOST_SERVERS; 0 for operations of
            the worker.
        variable: the parameter that it moves or updates; operations of one variable stay on one server.
            Empty if none. A delay with a variable passes at the server, else at the worker.
    """

    name: str
    resource: Resource
    waits_for: tuple[int, ...] = ()
    num_bytes: int = 0
    server: int = 0
    variable: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Steps of one worker. All have the same operations; durations differ from step to step ([ASGD] Sec. 2).

    Attributes:
        operations: in an order in which they could run one after the other.
        durations_s: of each operation in each step, 0 to LONGEST_S, float64, shape (num_steps,
            num_operations). Those of links are as recorded; a simulation computes them anew from bytes and
            bandwidth.
        samples_per_step: the worker's batch size, 1 to MOST_SAMPLES.
        splits: whether several servers would each hold an equal part of every variable, as those of our
            engine do; otherwise a variable stays whole on one server.
        downlink_orders: positions of all downlink operations in the order in which they moved in each step,
            int64, shape (num_steps, number of them); None: as listed in all steps.
    """

    operations: tuple[Operation, ...]
    durations_s: NDArray[np.float64]
    samples_per_step: int = 1
    splits: bool = False
    downlink_orders: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        check_trace(self)

    @property
    def num_steps(self) -> int:
        """Recorded steps."""
        return int(self.durations_s.shape[0])

    @property
    def num_servers(self) -> int:
        """Servers of the recorded job."""
        return 1 + max(operation.server for operation in self.operations)

    def positions(self, resource: Resource) -> list[int]:
        """Positions of all operations that use the resource."""
        return [i for i, operation in enumerate(self.operations) if operation.resource is resource]

    def num_bytes(self, resource: Resource, server: int | None = None) -> int:
        """Bytes that a step moves over a link, of all servers or of one."""
        return sum(
            operation.num_bytes
            for operation in self.operations
            if operation.resource is resource and server in (None, operation.server)
        )

    def seconds_per_step(self, resource: Resource) -> float:
        """Mean over the steps of the summed durations of all operations that use the resource."""
        return float(self.durations_s[:, self.positions(resource)].sum(axis=1).mean())


def check_trace(trace: Trace) -> None:
    """Refuse a trace that cannot be simulated.

    Raises:
        TraceError: no operations or steps, arrays that do not fit, a dependency on a later operation, bytes
        of an operation that moves none, or a value out of its range.
    """
    if not trace.operations:
        raise TraceError("the trace has no operations; record at least one step")
    shape = trace.durations_s.shape
    if len(shape) != 2 or shape[0] < 1 or shape[1] != len(trace.operations):
        raise TraceError(
            f"durations have the shape {shape}; {len(trace.operations)} operations need one row per step "
            "and one column per operation"
        )
    is_wrong = ~((trace.durations_s >= 0) & (trace.durations_s <= LONGEST_S))
    if np.any(is_wrong):
        step, operation = np.argwhere(is_wrong)[0]
        raise TraceError(
            f"step {step}, operation {trace.operations[operation].name!r}: duration "
            f"{trace.durations_s[step, operation]}; allowed: 0 to {LONGEST_S:g} s"
        )
    if not 1 <= trace.samples_per_step <= MOST_SAMPLES:
        raise TraceError(f"samples_per_step is {trace.samples_per_step}; allowed: 1 to {MOST_SAMPLES}")
    for position, operation in enumerate(trace.operations):
        _check_operation(position, operation)
    if trace.downlink_orders is not None:
        _check_orders(trace, trace.downlink_orders)


def _check_orders(trace: Trace, orders: NDArray[np.int64]) -> None:
    downlinks = trace.positions(Resource.DOWNLINK)
    if orders.shape != (trace.num_steps, len(downlinks)):
        raise TraceError(
            f"the orders of downlink operations have the shape {orders.shape}; {len(downlinks)} such "
            f"operations and {trace.num_steps} steps need ({trace.num_steps}, {len(downlinks)})"
        )
    for step, order in enumerate(orders.tolist()):
        if sorted(order) != downlinks:
            raise TraceError(
                f"step {step}: its order of downlink operations is {order}; it must have each of "
                f"{downlinks} once"
            )


def _check_operation(position: int, operation: Operation) -> None:
    where = f"operation {position} ({operation.name!r})"
    later = [before for before in operation.waits_for if not 0 <= before < position]
    if later:
        raise TraceError(f"{where} waits for operation {later[0]}; it can wait only for operations above it")
    if len(set(operation.waits_for)) != len(operation.waits_for):
        raise TraceError(f"{where} waits twice for the same operation")
    if not 0 <= operation.num_bytes <= MOST_BYTES:
        raise TraceError(f"{where}: bytes: got {operation.num_bytes}, allowed: 0 to {MOST_BYTES}")
    if not 0 <= operation.server < MOST_SERVERS:
        raise TraceError(f"{where}: server: got {operation.server}, allowed: 0 to {MOST_SERVERS - 1}")
    if operation.num_bytes and not operation.resource.is_link:
        raise TraceError(f"{where}: bytes: got {operation.num_bytes}, allowed: 0 for a {operation.resource}")
    if operation.server and operation.resource is Resource.WORKER:
        raise TraceError(
            f"{where} uses the worker, but names server {operation.server}; leave the server out"
        )
    if operation.server and operation.resource is Resource.DELAY and not operation.variable:
        raise TraceError(
            f"{where} is a delay of server {operation.server} without a variable; name the variable whose "
            "transfer it delays, or leave the server out"
        )


def trace_of_steps(
    operations: Iterable[Operation], durations_s: Iterable[Iterable[float]], samples_per_step: int = 1
) -> Trace:
    """A trace from plain lists of durations, one for each step."""
    rows = np.array([list(row) for row in durations_s], dtype=np.float64)
    return Trace(tuple(operations), rows, samples_per_step)

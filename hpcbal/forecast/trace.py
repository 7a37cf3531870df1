"""The trace of one worker by operation; for other batch sizes, and over other numbers of servers."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import InputError, PolicyError


class TraceError(InputError):
    """A trace is damaged, or does not describe steps that can be run."""


class Resource(enum.StrEnum):
    """The one resource that an operation uses ([ASGD] Sec. 2); `DELAY` only passes time."""

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
"""Most bytes of one operation."""
MOST_SAMPLES = 2**53
"""Most samples of one step."""
LONGEST_S = 1e9
"""Longest time of one operation."""


@dataclass(frozen=True, slots=True)
class TracedOperation:
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

    operations: tuple[TracedOperation, ...]
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


def _check_operation(position: int, operation: TracedOperation) -> None:
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


def scaled(trace: Trace, samples_per_step: int) -> Trace:
    """The worker's computations take as many times as long as there are more samples; the rest stays.

    It is a rough guess: what a computation takes besides its samples is scaled too. Bytes stay, too; where
    they depend on the samples (sparse updates), record a second trace and use `interpolated`.

    Args:
        samples_per_step: >= 1.
    """
    factor = samples_per_step / trace.samples_per_step
    computes = np.array([operation.resource is Resource.WORKER for operation in trace.operations])
    durations = np.where(computes, trace.durations_s * factor, trace.durations_s)
    return replace(trace, durations_s=durations, samples_per_step=samples_per_step)


def interpolated(traces: Sequence[Trace], samples_per_step: int) -> Trace:
    """A trace between, or beyond, those of two batch sizes.

    The mean duration and the bytes of each operation lie on the line through both traces. Durations vary from
    step to step as in the trace whose batch size is nearer.

    Args:
        traces: two, of the same operations, with different batch sizes.
        samples_per_step: >= 1.

    Raises:
        PolicyError: the traces have other operations, or the same batch size.
    """
    low, high = sorted(traces, key=lambda trace: trace.samples_per_step)
    if low.samples_per_step == high.samples_per_step:
        raise PolicyError(
            f"both traces have {low.samples_per_step} samples per step; record another batch size"
        )
    shapes = [
        [(o.name, o.resource, o.waits_for, o.server, o.variable) for o in trace.operations]
        for trace in (low, high)
    ]
    if shapes[0] != shapes[1]:
        raise PolicyError("the traces have other operations; record both of the same job")
    share = (samples_per_step - low.samples_per_step) / (high.samples_per_step - low.samples_per_step)
    near = low if share < 0.5 else high
    means = [trace.durations_s.mean(axis=0) for trace in (low, high)]
    wanted = np.maximum(means[0] + share * (means[1] - means[0]), 0.0)
    recorded = near.durations_s.mean(axis=0)
    factor = np.divide(wanted, recorded, out=np.zeros_like(wanted), where=recorded > 0.0)
    operations = tuple(
        replace(one, num_bytes=max(0, round(one.num_bytes + share * (other.num_bytes - one.num_bytes))))
        for one, other in zip(low.operations, high.operations, strict=True)
    )
    return replace(
        near,
        operations=operations,
        durations_s=np.where(recorded > 0.0, near.durations_s * factor, wanted),
        samples_per_step=samples_per_step,
    )


def on_servers(trace: Trace, num_servers: int) -> Trace:
    """The trace as a job with so many servers would have recorded it.

    Variables that split are cut into equal parts, with a transfer and an update for each; each part has the
    whole delay. Others stay whole: the next one in the trace goes to the server that holds the fewest bytes.
    What is already on so many servers stays where it is.

    Args:
        num_servers: >= 1.

    Raises:
        PolicyError: fewer than one server, fewer variables than servers, or variables that split and were
        recorded on several servers.

    Source: [ASGD] Sec. 5 for variables that stay whole.
    """
    if num_servers < 1:
        raise PolicyError(f"got {num_servers} servers, allowed: 1 or more")
    if trace.num_servers == num_servers:
        return trace
    return _split(trace, num_servers) if trace.splits else _dealt(trace, num_servers)


def _split(trace: Trace, num_servers: int) -> Trace:
    if trace.num_servers > 1:
        raise PolicyError(
            f"the trace was recorded with {trace.num_servers} servers, each with a part of every variable; "
            f"record it with {'1' if num_servers == 1 else f'1 or with {num_servers}'}"
        )
    operations: list[TracedOperation] = []
    columns = []
    parts: list[tuple[int, ...]] = []  # where each old operation is now
    for position, operation in enumerate(trace.operations):
        waits_for = tuple(part for before in operation.waits_for for part in parts[before])
        durations = trace.durations_s[:, position]
        if is_of_worker(operation):
            parts.append((len(operations),))
            operations.append(replace(operation, waits_for=waits_for))
            columns.append(durations)
            continue
        parts.append(tuple(range(len(operations), len(operations) + num_servers)))
        for server in range(num_servers):
            size = operation.num_bytes // num_servers + (server < operation.num_bytes % num_servers)
            own = tuple(p for p in waits_for if _serves(operations[p], server))
            operations.append(replace(operation, waits_for=own, num_bytes=size, server=server))
            columns.append(durations if operation.resource is Resource.DELAY else durations / num_servers)
    orders = trace.downlink_orders
    if orders is not None:
        orders = np.array(
            [[part for position in row for part in parts[position]] for row in orders.tolist()],
            dtype=np.int64,
        )
    return replace(
        trace,
        operations=tuple(operations),
        durations_s=np.stack(columns, axis=1),
        downlink_orders=orders,
    )


def _serves(operation: TracedOperation, server: int) -> bool:
    """Whether something at a server waits for it: for all of the worker, and for what its own server did."""
    return is_of_worker(operation) or operation.server == server


def is_of_worker(operation: TracedOperation) -> bool:
    """Whether it happens at the worker, and on no link."""
    is_delay = operation.resource is Resource.DELAY
    return operation.resource is Resource.WORKER or (is_delay and not operation.variable)


def _dealt(trace: Trace, num_servers: int) -> Trace:
    units = units_of(trace)
    sizes: dict[str, int] = {}
    for unit, down, up in _bytes_of_units(trace, units):
        sizes[unit] = max(down, up)
    if len(sizes) < num_servers:
        found = "1 variable" if len(sizes) == 1 else f"{len(sizes)} variables"
        raise PolicyError(f"the trace has {found}, too few for {num_servers} servers: each stays whole")
    held = [0] * num_servers
    server_of: dict[str, int] = {}
    count = [0] * num_servers
    for unit, size in sizes.items():
        server = min(range(num_servers), key=lambda s: (held[s], count[s], s))
        server_of[unit] = server
        held[server] += size
        count[server] += 1
    operations = tuple(
        operation if unit is None else replace(operation, server=server_of[unit])
        for operation, unit in zip(trace.operations, units, strict=True)
    )
    return replace(trace, operations=operations)


def units_of(trace: Trace) -> list[str | None]:
    """Return for each operation the variable with whose server it stays; None for those at the worker.

    An operation at a server without a variable belongs to what it waits for, if that is at a server, or is
    on its own.
    """
    units: list[str | None] = []
    for position, operation in enumerate(trace.operations):
        if is_of_worker(operation):
            units.append(None)
        elif operation.variable:
            units.append(operation.variable)
        else:
            before = [units[each] for each in operation.waits_for if units[each] is not None]
            units.append(before[0] if before else f"\0{position}")
    return units


def _bytes_of_units(trace: Trace, units: list[str | None]) -> list[tuple[str, int, int]]:
    down: dict[str, int] = {}
    up: dict[str, int] = {}
    for operation, unit in zip(trace.operations, units, strict=True):
        if unit is not None:
            down[unit] = down.get(unit, 0) + operation.num_bytes * (operation.resource is Resource.DOWNLINK)
            up[unit] = up.get(unit, 0) + operation.num_bytes * (operation.resource is Resource.UPLINK)
    return [(unit, down[unit], up[unit]) for unit in down]

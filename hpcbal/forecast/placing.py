"""Spread the variables of a trace over another number of servers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hpcbal.errors import PolicyError
from hpcbal.forecast.trace import Operation, Resource, Trace


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
    operations: list[Operation] = []
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


def _serves(operation: Operation, server: int) -> bool:
    """Whether something at a server waits for it: for all of the worker, and for what its own server did."""
    return is_of_worker(operation) or operation.server == server


def is_of_worker(operation: Operation) -> bool:
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
    """What stays together on one server, for each operation: its variable; None for those at the worker.

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

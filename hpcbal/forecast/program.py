"""A trace, a cluster and settings as flat arrays: what the replays in Python and in C read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import PolicyError
from hpcbal.forecast.cluster import Links, Order, Topology, as_they_come, tic
from hpcbal.forecast.trace import Resource, Trace

RESOURCES = (Resource.DOWNLINK, Resource.UPLINK, Resource.WORKER, Resource.SERVER, Resource.DELAY)
DOWN, UP, WORKER, SERVER, DELAY = range(5)

MOST_STEPS = 20_000_000
"""Most steps of all workers together; each takes 16 bytes."""

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """N operations, S recorded steps, W workers, M servers, `num_steps` steps to do.

    Attributes:
        kind: DOWN, UP, WORKER, SERVER or DELAY of each operation, shape (N,).
        server: shape (N,).
        num_bytes: shape (N,), float64.
        num_waits: operations that each operation waits for, shape (N,).
        dependents: those of operation i are `dependents[starts[i] : starts[i + 1]]`.
        starts: shape (N + 1,).
        roots: operations that start each recorded step, in the order in which they are handed out, shape
            (S, operations that wait for none).
        durations_s: shape (S, N).
        drawn: the recorded step that each worker replays as its i-th, shape (W, num_steps).
        worker_slowness, server_slowness: shapes (W,) and (M,).
        bytes_per_s: of the links, down and up, first of workers, then of servers: shape (2, W + M).
        begins_s: when each worker starts, shape (W,).
        window_bytes: after which a longer stream pauses once; may be infinite.
        in_turn: whether links carry one message after another (then no stream pauses).
    """

    kind: Integers
    server: Integers
    num_bytes: Floats
    num_waits: Integers
    dependents: Integers
    starts: Integers
    roots: Integers
    durations_s: Floats
    drawn: Integers
    worker_slowness: Floats
    server_slowness: Floats
    bytes_per_s: Floats
    begins_s: Floats
    window_bytes: float
    in_turn: bool = False


def program_of(
    trace: Trace,
    cluster: Topology,
    num_steps: int,
    seed: int,
    order: Order,
    window_bytes: float,
    in_turn: bool = False,
    begins_s: Sequence[float] = (),
) -> Program:
    """Draw the steps of all workers, and lay everything out.

    Args:
        begins_s: when each worker starts; empty: all at 0.

    Raises:
        PolicyError: the trace was not recorded with the cluster's number of servers,
        there are more steps than memory holds, or starts are not one for each worker.
    """
    if trace.num_servers != len(cluster.servers):
        raise PolicyError(
            f"the trace has {trace.num_servers} servers, but the cluster {len(cluster.servers)}; "
            "they must agree"
        )
    num_workers = len(cluster.workers)
    if begins_s and len(begins_s) != num_workers:
        raise PolicyError(f"{len(begins_s)} starts for {num_workers} workers: give one for each, or none")
    if num_workers * num_steps > MOST_STEPS:
        raise PolicyError(
            f"{num_workers * num_steps} steps of all workers together are too many, allowed: {MOST_STEPS}; "
            "simulate fewer steps or workers"
        )
    operations = trace.operations
    dependents: list[list[int]] = [[] for _ in operations]
    for position, operation in enumerate(operations):
        for before in operation.waits_for:
            dependents[before].append(position)
    rng = np.random.default_rng(seed)
    machines = [*cluster.workers, *cluster.servers]
    return Program(
        kind=np.array([RESOURCES.index(each.resource) for each in operations], dtype=np.int64),
        server=np.array([each.server for each in operations], dtype=np.int64),
        num_bytes=np.array([each.num_bytes for each in operations], dtype=np.float64),
        num_waits=np.array([len(each.waits_for) for each in operations], dtype=np.int64),
        dependents=np.array([each for several in dependents for each in several], dtype=np.int64),
        starts=np.cumsum([0, *map(len, dependents)], dtype=np.int64),
        roots=_roots(trace, order),
        durations_s=np.ascontiguousarray(trace.durations_s, dtype=np.float64),
        drawn=rng.integers(trace.num_steps, size=(num_workers, num_steps), dtype=np.int64),
        worker_slowness=_slowness(cluster.workers),
        server_slowness=_slowness(cluster.servers),
        bytes_per_s=np.array(
            [[each.down_bytes_per_s for each in machines], [each.up_bytes_per_s for each in machines]],
            dtype=np.float64,
        ),
        begins_s=np.array(begins_s or [0.0] * num_workers, dtype=np.float64),
        window_bytes=window_bytes,
        in_turn=in_turn,
    )


def _roots(trace: Trace, order: Order) -> Integers:
    """Transfers first, in their order; with `fifo` in that of each recorded step, if the trace has it."""
    operations = trace.operations
    first = tic(operations) if order == "tic" else as_they_come(operations)
    recorded = trace.downlink_orders if order == "fifo" else None
    transfers = np.tile(first, (trace.num_steps, 1)) if recorded is None else recorded
    listed = set(first)
    rest = [i for i, each in enumerate(operations) if i not in listed and not each.waits_for]
    waits = np.array([bool(operations[i].waits_for) for i in range(len(operations))])
    rows = [[*row[~waits[row]].tolist(), *rest] for row in transfers.astype(np.int64)]
    return np.array(rows, dtype=np.int64)


def _slowness(machines: tuple[Links, ...]) -> Floats:
    return np.array([each.slowness for each in machines], dtype=np.float64)


@dataclass(slots=True, eq=False)
class ReplayArrays:
    """The arrays that a replay fills in; W workers, M servers.

    Attributes:
        ends_s: when each step ended, shape (W, num_steps); of worker w the first `num_done[w]` are filled.
        num_done: shape (W,).
        bytes_moved, busy_s: down and up, shape (2, M).
        communicating_s, exposed_s, computing_s: of each worker, shape (W,).
        serving_s: of each server, shape (M,).
        end_s: of the run, shape (1,).
    """

    ends_s: Floats
    num_done: Integers
    bytes_moved: Floats
    busy_s: Floats
    communicating_s: Floats
    exposed_s: Floats
    computing_s: Floats
    serving_s: Floats
    end_s: Floats


def empty_record(program: Program) -> ReplayArrays:
    """For a replay of the program to fill in."""
    num_workers, num_steps = program.drawn.shape
    num_servers = program.server_slowness.size
    return ReplayArrays(
        np.zeros((num_workers, num_steps)),
        np.zeros(num_workers, dtype=np.int64),
        np.zeros((2, num_servers)),
        np.zeros((2, num_servers)),
        np.zeros(num_workers),
        np.zeros(num_workers),
        np.zeros(num_workers),
        np.zeros(num_servers),
        np.zeros(1),
    )

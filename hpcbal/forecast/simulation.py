"""Replay the steps of one worker on many, in virtual time."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import PolicyError
from hpcbal.forecast.cluster import Cluster
from hpcbal.forecast.orders import order_named
from hpcbal.forecast.sharing import max_min_shares
from hpcbal.forecast.trace import Resource, Trace

RESOURCES = (Resource.DOWNLINK, Resource.UPLINK, Resource.WORKER, Resource.SERVER)
DOWN, UP, WORKER, SERVER = range(4)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of work as it happened: part of a transfer, or an operation that computes."""

    worker: int
    step: int
    operation: int
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Settings:
    """How a simulation runs.

    Attributes:
        num_steps: the run ends when a worker has done as many, >= 1.
        seed: of the steps that are drawn, and of the order `random`.
        order: of the transfers that start a step; see `orders.ORDERS`.
        window_bytes: of HTTP/2 flow control, > 0: a longer stream pauses once, after as many bytes, and the
            streams that wait go first. Infinite: flow control is off ([ASGD] Sec. 3.2.2, 3.3).
    """

    num_steps: int = 1000
    seed: int = 0
    order: str = "fifo"
    window_bytes: float = 28e6

    def __post_init__(self) -> None:
        if self.num_steps < 1 or not self.window_bytes > 0:
            raise PolicyError(
                f"{self.num_steps} steps, a window of {self.window_bytes} bytes: "
                "at least one step and a window above 0 are needed"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """What came out.

    Attributes:
        ends_s: when each step of each worker ended, one array per worker.
        bytes_moved: shape (2, num_servers): down and up, until the end of the run.
        busy_s: time with at least one transfer, same shape.
        end_s: of the run.
    """

    ends_s: tuple[NDArray[np.float64], ...]
    bytes_moved: NDArray[np.float64]
    busy_s: NDArray[np.float64]
    end_s: float

    def steps_per_s(self, warm_up: int) -> float:
        """Steps per second of all workers together, without the first steps of each.

        Raises:
            PolicyError: a worker did fewer than `warm_up` + 1 steps.
        """
        total = 0.0
        for worker, ends in enumerate(self.ends_s):
            if ends.size <= warm_up:
                raise PolicyError(
                    f"worker {worker} did {ends.size} steps, {warm_up} of them to warm up; "
                    "simulate more steps"
                )
            began = float(ends[warm_up - 1]) if warm_up else 0.0
            total += (ends.size - warm_up) / (float(ends[-1]) - began)
        return total


@dataclass(slots=True)
class _Link:
    """All transfers of one direction."""

    active: dict[tuple[int, int], int] = field(default_factory=dict)  # (worker, server) -> operation
    left: dict[tuple[int, int], float] = field(default_factory=dict)  # bytes of the chunk
    rates: dict[tuple[int, int], float] = field(default_factory=dict)
    at_s: float = 0.0
    version: int = 0
    is_changed: bool = False


def simulate(
    trace: Trace, cluster: Cluster, settings: Settings, observe: Callable[[Chunk], None] | None = None
) -> Replay:
    """Replay the trace on all workers of the cluster, each with steps drawn with replacement.

    A worker runs one operation at a time on each of its resources: its own computation, its link to each
    server in each direction, and each server's computation for it. They serve operations in the order in
    which they become ready. Transfers of all workers share the links (`max_min_shares`); computations share
    nothing.

    Args:
        observe: is called with every chunk at its end.

    Raises:
        PolicyError: the trace was not recorded with the cluster's number of servers, or the order is not
        known.

    Source: [ASGD] Alg. 3.1. Deviations: links of workers have limits too, and the run ends for all workers
    when the first has done its steps, so that no worker is alone at the end.
    """
    return _Simulation(trace, cluster, settings, observe).run()


class _Simulation:
    def __init__(
        self, trace: Trace, cluster: Cluster, settings: Settings, observe: Callable[[Chunk], None] | None
    ) -> None:
        if trace.num_servers != len(cluster.servers):
            raise PolicyError(
                f"the trace has {trace.num_servers} servers, but the cluster {len(cluster.servers)}; "
                "they must agree"
            )
        self._operations = trace.operations
        self._kind = [RESOURCES.index(operation.resource) for operation in trace.operations]
        self._durations: list[list[float]] = trace.durations_s.tolist()
        self._dependents: list[list[int]] = [[] for _ in trace.operations]
        for position, operation in enumerate(trace.operations):
            for before in operation.waits_for:
                self._dependents[before].append(position)
        rng = np.random.default_rng(settings.seed)
        first = order_named(settings.order)(trace.operations, rng)
        listed = set(first)
        rest = (i for i in range(len(trace.operations)) if i not in listed)
        self._roots = [i for i in (*first, *rest) if not trace.operations[i].waits_for]
        num_workers = len(cluster.workers)
        self._drawn: list[list[int]] = rng.integers(
            trace.num_steps, size=(num_workers, settings.num_steps)
        ).tolist()
        self._settings, self._cluster, self._observe = settings, cluster, observe
        self._limits = [
            ([w.down_bytes_per_s for w in cluster.workers], [s.down_bytes_per_s for s in cluster.servers]),
            ([w.up_bytes_per_s for w in cluster.workers], [s.up_bytes_per_s for s in cluster.servers]),
        ]
        self._links = [_Link(), _Link()]
        self._ready: dict[tuple[int, int, int], deque[int]] = {}
        self._running: dict[tuple[int, int, int], tuple[int, float]] = {}  # -> operation, when it began
        self._rest: dict[tuple[int, int], float] = {}  # (worker, operation) -> bytes after its pause
        self._waits: list[list[int]] = [[] for _ in range(num_workers)]
        self._open = [0] * num_workers  # operations of the step that have not ended
        self._ends: list[list[float]] = [[] for _ in range(num_workers)]
        self._events: list[tuple[float, int, int, int, int]] = []  # time, kind, worker, server, version
        self._moved = np.zeros((2, len(cluster.servers)))
        self._busy = np.zeros((2, len(cluster.servers)))

    def run(self) -> Replay:
        for worker in range(len(self._ends)):
            self._start_step(worker, 0.0)
        self._plan_links(0.0)
        now = 0.0
        while max(map(len, self._ends)) < self._settings.num_steps:
            now, kind, worker, server, version = heapq.heappop(self._events)
            if kind in (DOWN, UP):
                if version != self._links[kind].version:
                    continue  # shares have changed since
                self._advance(kind, now)
                self._links[kind].is_changed = True
            self._end_chunk((worker, kind, server), now)
            self._plan_links(now)
        for kind in (DOWN, UP):
            self._advance(kind, now)
        return Replay(tuple(np.array(ends) for ends in self._ends), self._moved, self._busy, now)

    def _start_step(self, worker: int, now: float) -> None:
        self._waits[worker] = [len(operation.waits_for) for operation in self._operations]
        self._open[worker] = len(self._operations)
        for position in self._roots:
            self._add(worker, position, now)

    def _add(self, worker: int, position: int, now: float) -> None:
        """An operation is ready: it starts, or waits for its resource."""
        resource = (worker, self._kind[position], self._operations[position].server)
        self._ready.setdefault(resource, deque()).append(position)
        if resource not in self._running:
            self._start_next(resource, now)

    def _start_next(self, resource: tuple[int, int, int], now: float) -> None:
        ready = self._ready.get(resource)
        if not ready:
            return
        position = ready.popleft()
        self._running[resource] = (position, now)
        worker, kind, server = resource
        if kind in (DOWN, UP):
            self._start_transfer(worker, kind, server, position, now)
            return
        machine = self._cluster.workers[worker] if kind == WORKER else self._cluster.servers[server]
        step = self._drawn[worker][len(self._ends[worker])]
        ends = now + self._durations[step][position] * machine.slowness
        heapq.heappush(self._events, (ends, kind, worker, server, 0))

    def _start_transfer(self, worker: int, kind: int, server: int, position: int, now: float) -> None:
        size = self._rest.get((worker, position))
        if size is None:  # its first service
            total = float(self._operations[position].num_bytes)
            size = min(total, self._settings.window_bytes)
            self._rest[worker, position] = total - size
        else:
            self._rest[worker, position] = 0.0
        self._advance(kind, now)
        link = self._links[kind]
        link.active[worker, server] = position
        link.left[worker, server] = size
        link.is_changed = True

    def _end_chunk(self, resource: tuple[int, int, int], now: float) -> None:
        worker, kind, server = resource
        position, began = self._running[resource]
        if self._observe:
            self._observe(Chunk(worker, len(self._ends[worker]), position, began, now))
        if kind in (DOWN, UP):
            link = self._links[kind]
            self._moved[kind, server] += link.left[worker, server]  # what rounding has left
            del link.active[worker, server], link.left[worker, server]
            if self._rest[worker, position] > 0.0:
                self._ready[resource].append(position)
            else:
                del self._rest[worker, position]
                self._complete(worker, position, now)
        else:
            self._complete(worker, position, now)
        del self._running[resource]
        self._start_next(resource, now)
        if not self._open[worker]:
            self._ends[worker].append(now)
            if len(self._ends[worker]) < self._settings.num_steps:
                self._start_step(worker, now)

    def _complete(self, worker: int, position: int, now: float) -> None:
        self._open[worker] -= 1
        waits = self._waits[worker]
        for dependent in self._dependents[position]:
            waits[dependent] -= 1
            if not waits[dependent]:
                self._add(worker, dependent, now)

    def _advance(self, kind: int, now: float) -> None:
        """Move what the transfers of a direction have carried since their shares were set."""
        link = self._links[kind]
        passed = now - link.at_s
        link.at_s = now
        if not passed:
            return
        for server in {server for _, server in link.active}:
            self._busy[kind, server] += passed
        for connection in link.active:
            moved = min(link.left[connection], link.rates[connection] * passed)
            link.left[connection] -= moved
            self._moved[kind, connection[1]] += moved

    def _plan_links(self, now: float) -> None:
        """Share a direction anew if its transfers have changed, and find the one that ends next."""
        for kind, link in enumerate(self._links):
            if not link.is_changed:
                continue
            link.is_changed = False
            link.version += 1
            if not link.active:
                continue
            connections = sorted(link.active)
            shares = max_min_shares(connections, *self._limits[kind])
            link.rates = dict(zip(connections, shares, strict=True))
            worker, server = min(connections, key=lambda c: (link.left[c] / link.rates[c], c))
            ends = now + link.left[worker, server] / link.rates[worker, server]
            heapq.heappush(self._events, (ends, kind, worker, server, link.version))


FLOW_CONTROL_OFF = math.inf
"""As `Settings.window_bytes`."""

"""The machines that a forecast is for, and how links are shared there.

`paramserver.store.links` is the same arithmetic, in whole nanoseconds and spread over ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hpcbal.errors import PolicyError
from hpcbal.forecast.trace import Resource, TracedOperation


@dataclass(frozen=True, slots=True)
class Links:
    """The rates of a machine's link in each direction, and its slowness in computing.

    Attributes:
        down_bytes_per_s: of parameters, from servers to workers, > 0; may be infinite for a worker.
        up_bytes_per_s: of updates, from workers to servers; the same range.
        slowness: its computations take this many times as long as recorded, > 0 and finite.
    """

    down_bytes_per_s: float
    up_bytes_per_s: float
    slowness: float = 1.0

    def __post_init__(self) -> None:
        if not (self.down_bytes_per_s > 0 and self.up_bytes_per_s > 0 and 0 < self.slowness < math.inf):
            raise PolicyError(
                f"bandwidths {self.down_bytes_per_s} and {self.up_bytes_per_s}, slowness {self.slowness}: "
                "all must be above 0, and the slowness finite"
            )


@dataclass(frozen=True, slots=True)
class Topology:
    """Workers and servers, alike or not.

    Raises:
        PolicyError: no workers or servers, or a server's link without a limit.
    """

    workers: tuple[Links, ...]
    servers: tuple[Links, ...]

    def __post_init__(self) -> None:
        if not self.workers or not self.servers:
            raise PolicyError(
                f"{len(self.workers)} workers and {len(self.servers)} servers: at least one of each is needed"
            )
        if any(math.isinf(s.down_bytes_per_s) or math.isinf(s.up_bytes_per_s) for s in self.servers):
            raise PolicyError("a server's bandwidth must be finite")


def max_min_shares(
    connections: Sequence[tuple[int, int]],
    worker_bytes_per_s: Sequence[float],
    server_bytes_per_s: Sequence[float],
) -> list[float]:
    """Share both ends' links so that no connection gets more at the cost of one that has less.

    All connections grow at the same pace. When a link is full, its connections stop; the others grow on.

    Args:
        connections: (worker, server) of each active connection, no pair twice.
        worker_bytes_per_s: what the link of each worker carries in this direction, > 0; may be infinite.
        server_bytes_per_s: of each server, > 0 and finite.

    Returns: bytes per second of each connection, in the same order.

    Source: max-min fairness by progressive filling. With one server and workers whose links do not limit, it
    is the equal share of [ASGD] Sec. 3.1. With two servers and like links it is the rule of [ASGD] Sec. 5.
    """
    num_workers = len(worker_bytes_per_s)
    left = [*worker_bytes_per_s, *server_bytes_per_s]
    users = [0] * len(left)
    for worker, server in connections:
        users[worker] += 1
        users[num_workers + server] += 1
    shares = [0.0] * len(connections)
    growing = list(range(len(connections)))
    while growing:
        fair = min(left[link] / users[link] for link in range(len(left)) if users[link])
        full = [users[link] > 0 and left[link] / users[link] <= fair for link in range(len(left))]
        still = []
        for index in growing:
            worker, server = connections[index]
            if not (full[worker] or full[num_workers + server]):
                still.append(index)
                continue
            shares[index] = fair
            for link in (worker, num_workers + server):
                left[link] -= fair
                users[link] -= 1
        growing = still
    return shares


@dataclass(slots=True)
class Transfer:
    """A message on its way.

    Attributes:
        worker, server: its ends.
        position: of its operation.
        num_bytes: of it.
        starts_s: when the sender's link takes it.
        left_s: when its last byte has left.
        has_begun: whether the receiver's link has taken it.
    """

    worker: int
    server: int
    position: int
    num_bytes: float
    starts_s: float = 0.0
    left_s: float = 0.0
    has_begun: bool = False


class LinksInTurn:
    """One direction of the links of all workers and servers.

    A message takes the sender's link when that is free, and the receiver's from the same moment on, or when
    that is free: it does not wait there for its last byte. It has arrived when both have carried all of it. A
    receiver carries messages in the order in which they start.

    Args:
        worker_bytes_per_s, server_bytes_per_s: of each link, > 0; those of workers may be infinite.
        is_down: whether servers send, and not workers.
    """

    def __init__(
        self, worker_bytes_per_s: Sequence[float], server_bytes_per_s: Sequence[float], is_down: bool
    ) -> None:
        self._rates = list(worker_bytes_per_s), list(server_bytes_per_s)
        self._free_s = [0.0] * len(worker_bytes_per_s), [0.0] * len(server_bytes_per_s)
        self._sender = 1 if is_down else 0

    def leave(self, transfer: Transfer, now_s: float) -> float:
        """Send a message as soon as the sender's link is free; returns when that is."""
        transfer.starts_s, transfer.left_s = self._take(transfer, self._sender, now_s)
        return transfer.starts_s

    def begin(self, transfer: Transfer) -> float:
        """The message starts: take the receiver's link. Returns when it has arrived."""
        transfer.has_begun = True
        _, carried_s = self._take(transfer, 1 - self._sender, transfer.starts_s)
        return max(transfer.left_s, carried_s)

    def _take(self, transfer: Transfer, end: int, now_s: float) -> tuple[float, float]:
        """Take one end's link; returns from when until when."""
        machine = transfer.server if end else transfer.worker
        free_s = self._free_s[end]
        starts_s = max(now_s, free_s[machine])
        free_s[machine] = starts_s + transfer.num_bytes / self._rates[end][machine]
        return starts_s, free_s[machine]

    def busy_s(self, transfer: Transfer) -> float:
        """How long a message takes the link of its server."""
        return transfer.num_bytes / self._rates[1][transfer.server]


Order = Callable[[Sequence[TracedOperation], np.random.Generator], list[int]]
"""Gives all downlink operations of a step, the first to be sent first."""


def as_they_come(operations: Sequence[TracedOperation], rng: np.random.Generator) -> list[int]:
    """The order of the trace."""
    return [i for i, operation in enumerate(operations) if operation.resource is Resource.DOWNLINK]


def tic(operations: Sequence[TracedOperation], rng: np.random.Generator) -> list[int]:
    """Parameters first that let the worker compute with the fewest transfers; no timings are needed.

    The load of an operation is the number of downlink transfers that it needs, directly or through others. A
    transfer comes the earlier, the lower the least load is of those operations that need it and at least one
    more. Among equals the one comes first that an operation with fewer transfers needs, alone or not; then
    the trace decides.

    Source: TIC of [TICTAC], as [ASGD] Sec. 3.3 uses it: the priority is the impending communication load,
    with one unit for each transfer. The rule for equals is ours.
    """
    transfers = as_they_come(operations, rng)
    bits = {position: 1 << bit for bit, position in enumerate(transfers)}
    needs: list[int] = []
    never = len(transfers) + 1
    least = dict.fromkeys(transfers, never)
    least_shared = dict.fromkeys(transfers, never)
    seen: set[int] = set()
    for position, operation in enumerate(operations):
        need = bits.get(position, 0)
        for before in operation.waits_for:
            need |= needs[before]
        needs.append(need)
        if operation.resource is not Resource.WORKER or need in seen:
            continue
        seen.add(need)  # many operations need the same transfers
        load = need.bit_count()
        for transfer, bit in bits.items():
            if need & bit:
                least[transfer] = min(least[transfer], load)
                if load > 1:
                    least_shared[transfer] = min(least_shared[transfer], load)
    return sorted(transfers, key=lambda transfer: (least_shared[transfer], least[transfer], transfer))


def reverse_tic(operations: Sequence[TracedOperation], rng: np.random.Generator) -> list[int]:
    """TIC backwards: about the worst order ([ASGD] Fig. 18)."""
    return tic(operations, rng)[::-1]


def random_order(operations: Sequence[TracedOperation], rng: np.random.Generator) -> list[int]:
    """One random order, the same in all steps ([ASGD] Fig. 18)."""
    return [int(position) for position in rng.permutation(as_they_come(operations, rng))]


AS_THEY_COME = "fifo"
"""The order of the trace, or of each of its steps if the trace has one for each."""

ORDERS: dict[str, Order] = {
    AS_THEY_COME: as_they_come,
    "tic": tic,
    "reverse": reverse_tic,
    "random": random_order,
}


def order_named(name: str) -> Order:
    """The order of that name.

    Raises:
        PolicyError: there is none.
    """
    if name not in ORDERS:
        raise PolicyError(f"order: got {name!r}, allowed: {', '.join(ORDERS)}")
    return ORDERS[name]

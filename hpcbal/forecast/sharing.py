"""How transfers that are under way at the same time share the links of servers and workers."""

from __future__ import annotations

from collections.abc import Sequence


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

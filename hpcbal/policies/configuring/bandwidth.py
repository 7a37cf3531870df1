"""The bandwidth of links that were not measured themselves: from what turns took."""

from __future__ import annotations

import math

from hpcbal.policies.configuring.cost_model import Links

LEAST_COMMUNICATION_S = 1e-7
"""A turn cannot be measured to communicate faster."""


def measured_bandwidth(
    turn_bytes: float,
    num_workers: int,
    largest_share: float,
    communication_s: float,
    compute_s: float,
    has_barrier: bool,
    links: Links = "in_turn",
) -> float:
    """What `epoch_cost` says of a turn of equal machines, solved for the bandwidth of their links.

    Args:
        turn_bytes: pulled and pushed by a worker, > 0; half each.
        num_workers: >= 1.
        largest_share: of the model, on the fullest server.
        communication_s, compute_s: of a turn, measured; >= 0.
        has_barrier: whether steps wait for each other.
        links: see `Problem`.

    Returns: bytes/s in each direction.
    """
    communication_s = max(LEAST_COMMUNICATION_S, communication_s)
    one_way = largest_share * turn_bytes / 2
    if links == "shared" and has_barrier:
        return max(turn_bytes, 2 * num_workers * one_way) / communication_s
    if links == "shared":
        if num_workers * 2 * one_way <= turn_bytes:
            return turn_bytes / communication_s
        # For x = 1/bandwidth and t seconds of a turn, c of them communicating, `on_shared_links` says
        # (c - (turn_bytes - 2 o) x) (t - (w - 1) o x) = 2 t o x.
        turn_s = communication_s + max(0.0, compute_s)
        alone, others = turn_bytes - 2 * one_way, (num_workers - 1) * one_way
        b, ac = communication_s * others + turn_s * turn_bytes, alone * others * turn_s * communication_s
        return (b + math.sqrt(max(0.0, b * b - 4 * ac))) / (2 * turn_s * communication_s)
    if has_barrier:
        return (turn_bytes + (num_workers - 1) * one_way) / communication_s
    # Servers may have been the bottleneck, or the worker's own link: neither was faster than was measured.
    served = num_workers * one_way / (communication_s + max(0.0, compute_s))
    return max(turn_bytes / communication_s, served)

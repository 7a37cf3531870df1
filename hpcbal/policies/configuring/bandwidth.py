"""The bandwidth of links that were not measured themselves: from what turns took."""

from __future__ import annotations

LEAST_COMMUNICATION_S = 1e-7
"""A turn cannot be measured to communicate faster."""


def measured_bandwidth(
    turn_bytes: float,
    num_workers: int,
    largest_share: float,
    communication_s: float,
    compute_s: float,
    has_barrier: bool,
) -> float:
    """What `epoch_cost` says of a turn of equal machines, solved for the bandwidth of their links.

    Args:
        turn_bytes: pulled and pushed by a worker, > 0; half each.
        num_workers: >= 1.
        largest_share: of the model, on the fullest server.
        communication_s, compute_s: of a turn, measured; >= 0.
        has_barrier: whether steps wait for each other.

    Returns: bytes/s in each direction.
    """
    communication_s = max(LEAST_COMMUNICATION_S, communication_s)
    one_way = largest_share * turn_bytes / 2
    if has_barrier:
        return (turn_bytes + (num_workers - 1) * one_way) / communication_s
    # Servers may have been the bottleneck, or the worker's own link: neither was faster than was measured.
    served = num_workers * one_way / (communication_s + max(0.0, compute_s))
    return max(turn_bytes / communication_s, served)

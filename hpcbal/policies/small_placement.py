"""Find the best of all placements on a cluster that is small enough to try them all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache

MOST_STATES = 500
"""Most states of a cluster that is searched. Eight nodes of 4 GPUs have 495 states, and so have four nodes of
8: the search takes milliseconds. With twice as many states it can take a tenth of a second."""

Rooms = tuple[int, ...]
"""Free GPUs of each node, descending: nodes with equal numbers are interchangeable."""


def is_small(node_sizes: Sequence[int]) -> bool:
    """Whether a cluster can have at most `MOST_STATES` different states.

    A state is the number of free GPUs per node, in any order; n nodes of up to s GPUs have at most (n + s
    choose s) states.
    """
    sizes = [size for size in node_sizes if size > 0]
    largest = max(sizes, default=0)
    return math.comb(len(sizes) + largest, largest) <= MOST_STATES


def best_parts(counts: Sequence[int], node_sizes: Sequence[int]) -> list[list[int]]:
    """How many GPUs of each node every DNN takes, with the least Eq. 4 over all placements.

    DNNs are placed one after another, large ones first, on any nodes with any split between them. The least
    loss of the remaining DNNs depends only on the free GPUs of the nodes, so each such state is solved once.

    Args:
        counts: GPUs of each DNN, >= 1, summing to at most the GPUs of the nodes.
        node_sizes: GPUs of each node, >= 0, of a small cluster, see `is_small`.

    Returns: GPUs by node, for each DNN.
    Source: [FLEET] Eq. 4.
    """
    order = sorted(range(len(counts)), key=lambda i: (-counts[i], i))
    needs = [counts[i] for i in order]
    best = _solver(needs, max(node_sizes, default=0))
    free = list(node_sizes)
    parts = [[0] * len(free) for _ in counts]
    for place, i in enumerate(order):
        nodes = sorted(range(len(free)), key=lambda node: (-free[node], node))
        _, taken = best(place, tuple(free[node] for node in nodes))
        for node, part in zip(nodes, taken, strict=True):
            parts[i][node] = part
            free[node] -= part
    return parts


def _solver(needs: Sequence[int], full_node: int) -> Callable[[int, Rooms], tuple[float, Rooms]]:
    """Make a function from (first unplaced DNN, free GPUs) to (least loss, free GPUs after that DNN)."""
    # No placement of DNNs i, i + 1, ... has a smaller loss: each on the fewest full nodes that hold it.
    least = [sum(-(-need // full_node) / need for need in needs[i:]) for i in range(len(needs) + 1)]

    @cache
    def best(i: int, rooms: Rooms) -> tuple[float, Rooms]:
        if i == len(needs):
            return 0.0, ()
        least_loss, least_parts = math.inf, rooms
        for num_nodes in range(1, len(rooms) + 1):
            loss = num_nodes / needs[i]
            if loss + least[i + 1] >= least_loss - 1e-12:
                break  # more nodes only add to the loss
            for parts in _ways(needs[i], num_nodes, rooms):
                left = sorted((room - part for room, part in zip(rooms, parts, strict=True)), reverse=True)
                total = loss + best(i + 1, tuple(left))[0]
                if total < least_loss - 1e-12:
                    least_loss, least_parts = total, parts
        return least_loss, least_parts

    return best


def _ways(need: int, num_nodes: int, rooms: Rooms, most: int | None = None) -> Iterator[Rooms]:
    """Yield each different way to take `need` GPUs from exactly `num_nodes` nodes, as parts per node.

    A node gives no more than the node before it with the same number of free GPUs (`most`, if that node
    comes before the first one here).
    """
    if num_nodes == 0:
        if need == 0:
            yield (0,) * len(rooms)
        return
    if not num_nodes <= need <= sum(rooms[:num_nodes]):
        return
    first, rest = rooms[0], rooms[1:]
    largest = min(first, need - (num_nodes - 1), first if most is None else most)
    for part in range(largest, -1, -1):
        bound = part if rest and rest[0] == first else None
        for others in _ways(need - part, num_nodes - (part > 0), rest, bound):
            yield (part, *others)

"""Assign the slots of a cluster in a row, and search the order in which DNNs take them."""

from __future__ import annotations

import bisect
import itertools
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from hpcbal.cluster.layout import Cluster

IntArray = npt.NDArray[np.int64]

# Scores are sums of quotients: equal ones may differ in the last digits, depending on the order of the sum.
SCORE_DIGITS = 9


class SlotRow:
    """The slots of a cluster in a row, node after node in a chosen order; nodes without slots are skipped.

    Attributes:
        sizes: slots of each node, in the row's order.
    """

    def __init__(self, cluster: Cluster, node_order: Iterable[int]) -> None:
        first_slot = [0, *itertools.accumulate(node.num_slots for node in cluster.nodes)]
        order = [i for i in node_order if cluster.nodes[i].num_slots > 0]
        self.sizes = [cluster.nodes[i].num_slots for i in order]
        self._slots = [j for i in order for j in range(first_slot[i], first_slot[i + 1])]
        self._node: IntArray = np.repeat(np.arange(len(order)), self.sizes)  # place in the row of each slot

    def regular_size(self) -> int:
        return self.sizes[0]

    def num_regular_slots(self) -> int:
        """Slots of the leading nodes of equal size."""
        return sum(itertools.takewhile(lambda size: size == self.sizes[0], self.sizes))

    def hand_out(self, order: Iterable[int], counts: Sequence[int]) -> list[tuple[int, ...]]:
        """Slots of each DNN if they are assigned in this order: Alg. 4."""
        slots: list[tuple[int, ...]] = [()] * len(counts)
        j = 0
        for i in order:
            slots[i] = tuple(sorted(self._slots[j : j + counts[i]]))
            j += counts[i]
        return slots

    def scores(self, counts: IntArray, start: int) -> npt.NDArray[np.float64]:
        """Eq. 4 for many orders at once, from slot `start` of the row.

        Args:
            counts: slots of the DNN that comes first, second, ...; shape (num_orders, num_dnns).

        Returns: scores, shape (num_orders,).
        """
        end = start + np.cumsum(counts, axis=1)
        num_nodes = self._node[end - 1] - self._node[end - counts] + 1
        scores: npt.NDArray[np.float64] = np.round((num_nodes / counts).sum(axis=1), SCORE_DIGITS)
        return scores

    def fitting_order(self, counts: Sequence[int], start: int) -> list[int]:
        """The counts in an order that crosses few node borders: always take the largest count that fits."""
        num_waiting = Counter(counts)
        distinct = sorted(num_waiting)
        borders = list(itertools.accumulate(self.sizes))
        order: list[int] = []
        j = start
        while distinct:
            room = borders[bisect.bisect_right(borders, j)] - j
            # If nothing fits, a large DNN loses least by crossing: Eq. 4 divides by its slots.
            m = distinct[bisect.bisect_right(distinct, room) - 1]  # -1 is the largest
            order.append(m)
            j += m
            num_waiting[m] -= 1
            if not num_waiting[m]:
                distinct.remove(m)
        return order


def order_of_least_score(counts: Sequence[int], row: SlotRow, start: int, max_permutations: int) -> list[int]:
    """Indices of `counts` in the best of two heuristic orders and `max_permutations` further ones.

    Args:
        counts: slots of each DNN, >= 1.
        row: row with space for all of them from slot `start` on.
        start: first free slot of the row.
        max_permutations: >= 1.

    Returns: a permutation of 0..len(counts)-1; of orders with equal scores the first one tried.
    """
    if not counts:
        return []
    sequences = itertools.chain([list(counts), row.fitting_order(counts, start)], _distinct_orders(counts))
    tried = np.array(list(itertools.islice(sequences, max_permutations + 2)), dtype=np.int64)
    best = tried[int(np.argmin(row.scores(tried, start)))]
    dnns_of_count: dict[int, deque[int]] = {}
    for i, m in enumerate(counts):
        dnns_of_count.setdefault(m, deque()).append(i)
    return [dnns_of_count[int(m)].popleft() for m in best]


def _distinct_orders(counts: Sequence[int]) -> Iterator[list[int]]:
    """All different orders of a multiset, in lexicographic order from the ascending one."""
    order = sorted(counts)
    while True:
        yield list(order)
        turn = len(order) - 2
        while turn >= 0 and order[turn] >= order[turn + 1]:
            turn -= 1
        if turn < 0:
            return
        swap = len(order) - 1
        while order[swap] <= order[turn]:
            swap -= 1
        order[turn], order[swap] = order[swap], order[turn]
        order[turn + 1 :] = reversed(order[turn + 1 :])


def num_different_orders(counts: Sequence[int], limit: int) -> int:
    """Number of different orders of a multiset, or `limit` + 1 if there are more."""
    total, num_orders = 0, 1
    for multiplicity in Counter(counts).values():
        for k in range(1, multiplicity + 1):
            total += 1
            num_orders = num_orders * total // k
        if num_orders > limit:
            return limit + 1
    return num_orders

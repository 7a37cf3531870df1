"""Map the trainers of one flotilla onto the slots of the allocation.

The slots of a cluster stand in a row; the order in which DNNs take them is searched.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from hpcbal.cluster.layout import Cluster, num_nodes_used
from hpcbal.errors import PolicyError
from hpcbal.policies.flotilla import Flotilla

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


@dataclass(frozen=True, slots=True)
class Placement:
    """Which slots train which DNN.

    Attributes:
        slots: slots of each DNN, ascending in the cluster's numbering; the rank of the first is the master.
        score: the loss of [FLEET] Eq. 4, > 0; lower is better.
    """

    slots: Mapping[str, tuple[int, ...]]
    score: float


def placement_score(slots: Mapping[str, Sequence[int]], cluster: Cluster) -> float:
    """Sum over the DNNs of (nodes involved) / (slots assigned).

    Args:
        slots: slots of each DNN, at least one each.
        cluster: the cluster that has these slots.

    Source: [FLEET] Eq. 4.
    """
    return nodes_over_slots(slots.values(), cluster.node_of_slots())


def nodes_over_slots(groups: Iterable[Sequence[int]], node_of_slot: Sequence[int]) -> float:
    """`placement_score` of groups of slots, for callers that know the node of each slot."""
    return math.fsum(num_nodes_used(own, node_of_slot) / len(own) for own in groups)


def assign_slots(flotilla: Flotilla, cluster: Cluster, max_permutations: int = 1024) -> Placement:
    """Give every DNN its number of slots, on as few nodes as a bounded search finds.

    Slots are assigned in a row, one DNN after another, so only the order of the DNNs is searched: first DNNs
    that fill whole nodes, then pairs that do so together, then the best order found for the rest.

    Extensions, each used only if it scores better:
      - If the whole flotilla has at most `max_permutations` different orders, all are tried, so the score
        is the minimum over all orders. Greedy stages alone can miss it.
      - Best fit instead of a row, both large DNNs first and small DNNs first: a DNN goes where it leaves
        the least space, and slots may stay free in between. Only this lets a flotilla that does not use all
        slots benefit from the free ones, or spreads a large DNN over slots that small ones leave.
      - The flotilla's own order, unsorted: the score is never worse than without a policy.
      - On a small cluster (see `is_small`) every placement is tried, unless one of these already has each
        DNN on the fewest nodes that hold it.
    Nodes with different numbers of slots: the first two stages use the nodes of the most frequent size and
    fill those first; other nodes follow, large ones first.

    Deviations from [FLEET] Alg. 3, which lost signs and set differences in print:
      - Lines 11 and 24 read `remaining = assigned`; it is `remaining` without `assigned`.
      - Line 21 deletes memo[m % G]; the entry to delete is that of the partner, memo[-m % G].
      - Line 15 overwrites an earlier DNN with the same remainder, which then cannot be paired; we queue it.
      - Line 3 counts to N; it is N_k. The comment of line 35 means Eq. 4, not Eq. 7.
      - The search visits different sequences of slot counts, because DNNs with equal counts are
        interchangeable, and starts with orders from a heuristic; [FLEET] only says that it stops at 1,024.

    Args:
        flotilla: DNNs and their numbers of slots.
        cluster: with at least as many slots.
        max_permutations: orders that one search tries, >= 1; two heuristic orders are tried in addition.

    Raises: PolicyError: if the flotilla needs more slots than there are, or an argument is out of range.
    Source: [FLEET] Sec. 4.3.2, Eq. 4, App. A, Alg. 3 and 4. On a small cluster the placement is the optimum
        of Eq. 4, on nodes of equal and of different size. On larger clusters no bound is proved, unless
        every DNN is on the fewest nodes that hold it.
    """
    counts = flotilla.num_slots
    if sum(counts) > cluster.num_slots:
        raise PolicyError(
            f"the flotilla needs {sum(counts)} slots, the cluster has {cluster.num_slots}; "
            "plan the flotilla for this cluster"
        )
    if min(counts, default=1) < 1 or max_permutations < 1:
        raise PolicyError(
            f"slots per DNN {counts}, max_permutations {max_permutations}: allowed: 1 or more everywhere"
        )
    if not counts:
        return Placement({}, 0.0)
    least = round(least_score(counts, cluster), SCORE_DIGITS)
    node_of_slot = cluster.node_of_slots()
    best, best_score = list[tuple[int, ...]](), math.inf
    for option in _options(counts, cluster, max_permutations):
        score = nodes_over_slots(option, node_of_slot)
        if round(score, SCORE_DIGITS) < round(best_score, SCORE_DIGITS):
            best, best_score = option, score  # the first among equals wins: the paper's if it is as good
        if round(best_score, SCORE_DIGITS) <= least:
            break
    return Placement(dict(zip(flotilla.dnn_ids, best, strict=True)), best_score)


def least_score(counts: Sequence[int], cluster: Cluster) -> float:
    """Eq. 4 if each DNN could use the fewest nodes that hold it; a lower bound for every placement.

    Args:
        counts: slots of each DNN, from 1 to all slots of the cluster.
    """
    held = list(itertools.accumulate(sorted((node.num_slots for node in cluster.nodes), reverse=True)))
    return math.fsum((bisect.bisect_left(held, m) + 1) / m for m in counts)


def _options(
    counts: Sequence[int], cluster: Cluster, max_permutations: int
) -> Iterator[list[tuple[int, ...]]]:
    """Placements, in the order of the docstring of `assign_slots`."""
    given = SlotRow(cluster, range(len(cluster.nodes)))
    row = SlotRow(cluster, _regular_nodes_first(cluster))
    yield _in_stages(counts, row, max_permutations)
    if num_different_orders(counts, max_permutations) <= max_permutations:
        for whole in (row, given):
            yield whole.hand_out(order_of_least_score(counts, whole, 0, max_permutations), counts)
    for large_first in (True, False):
        yield _best_fit(counts, cluster, large_first)
    yield given.hand_out(range(len(counts)), counts)
    sizes = [node.num_slots for node in cluster.nodes]
    if is_small(sizes):
        yield _from_parts(best_parts(counts, sizes), cluster)


def _from_parts(parts: Sequence[Sequence[int]], cluster: Cluster) -> list[tuple[int, ...]]:
    """Slots of each DNN, given how many it takes from each node: the first free ones there."""
    next_slot = list(itertools.accumulate((node.num_slots for node in cluster.nodes), initial=0))[:-1]
    slots = []
    for own in parts:
        slots.append(tuple(next_slot[node] + k for node, part in enumerate(own) for k in range(part)))
        next_slot = [first + part for first, part in zip(next_slot, own, strict=True)]
    return slots


def _regular_nodes_first(cluster: Cluster) -> list[int]:
    """Node indices: nodes of the most frequent size first (the larger size if tied), then others by size."""
    sizes = [node.num_slots for node in cluster.nodes]
    frequency = Counter(size for size in sizes if size > 0)
    regular = max(frequency, key=lambda size: (frequency[size], size), default=0)
    return sorted(range(len(sizes)), key=lambda i: (sizes[i] != regular, -sizes[i], i))


def _in_stages(counts: Sequence[int], row: SlotRow, max_permutations: int) -> list[tuple[int, ...]]:
    """Alg. 3: whole nodes, pairs that fill nodes, then the best order found for the rest."""
    size, capacity = row.regular_size(), row.num_regular_slots()
    placed: list[int] = []
    waiting_by_remainder: dict[int, deque[int]] = {}
    used = 0
    for i, m in enumerate(counts):
        if m % size == 0 and used + m <= capacity:
            placed.append(i)
            used += m
    aligned = set(placed)
    for i in (i for i in range(len(counts)) if i not in aligned):
        partners = waiting_by_remainder.get(-counts[i] % size)
        if partners and used + counts[i] + counts[partners[0]] <= capacity:
            used += counts[i] + counts[partners[0]]
            placed += [partners.popleft(), i]
        else:
            waiting_by_remainder.setdefault(counts[i] % size, deque()).append(i)
    rest = sorted(set(range(len(counts))) - set(placed))
    rest_counts = [counts[i] for i in rest]
    order = placed + [rest[k] for k in order_of_least_score(rest_counts, row, used, max_permutations)]
    return row.hand_out(order, counts)


def _best_fit(counts: Sequence[int], cluster: Cluster, large_first: bool) -> list[tuple[int, ...]]:
    """Each DNN takes the fullest node with enough space, or the emptiest nodes and then such a node.

    Large DNNs first packs tightly; small DNNs first splits only large ones, which lose least by it.
    """
    first_slot = [0, *itertools.accumulate(node.num_slots for node in cluster.nodes)]
    end_of_node = first_slot[1:]
    # One heap of node indices per number of free slots.
    nodes_by_room: list[list[int]] = [[] for _ in range(cluster.max_slots_per_node + 1)]
    for i, node in enumerate(cluster.nodes):
        heapq.heappush(nodes_by_room[node.num_slots], i)
    slots: list[list[int]] = [[] for _ in counts]
    for i in sorted(range(len(counts)), key=lambda i: (-counts[i] if large_first else counts[i], i)):
        need = counts[i]
        while need > 0:
            fits = next((room for room in range(need, len(nodes_by_room)) if nodes_by_room[room]), None)
            room = max(r for r, nodes in enumerate(nodes_by_room) if nodes) if fits is None else fits
            node_index, take = heapq.heappop(nodes_by_room[room]), min(need, room)
            start = end_of_node[node_index] - room
            slots[i] += range(start, start + take)
            heapq.heappush(nodes_by_room[room - take], node_index)
            need -= take
        slots[i].sort()
    return [tuple(own) for own in slots]


def assign_slots_roughly(flotilla: Flotilla, cluster: Cluster, had: Mapping[str, Sequence[int]]) -> Placement:
    """Place a flotilla without a search: DNNs stay where they can, the others take the free slots in order.

    Not for training: nodes are not considered, and the score is not computed (it is 0).

    Args:
        flotilla: DNNs and their numbers of slots.
        cluster: cluster with at least as many slots.
        had: slots of DNNs when they were last trained.
    """
    needs = dict(zip(flotilla.dnn_ids, flotilla.num_slots, strict=True))
    slots = {d: tuple(had[d][:need]) for d, need in needs.items() if need <= len(had.get(d, ()))}
    taken = {slot for own in slots.values() for slot in own}
    free = iter([slot for slot in range(cluster.num_slots) if slot not in taken])
    for d, need in needs.items():
        if d not in slots:
            slots[d] = tuple(next(free) for _ in range(need))
    return Placement({d: slots[d] for d in needs}, 0.0)


MOST_STATES = 500
"""Most states of a cluster that is searched. Eight nodes of 4 slots have 495 states, and so have four nodes
of 8: the search takes milliseconds. With twice as many states it can take a tenth of a second."""

Rooms = tuple[int, ...]
"""Free slots of each node, descending: nodes with equal numbers are interchangeable."""


def is_small(node_sizes: Sequence[int]) -> bool:
    """Whether a cluster can have at most `MOST_STATES` different states.

    A state is the number of free slots per node, in any order; n nodes of up to s slots have at most (n + s
    choose s) states.
    """
    sizes = [size for size in node_sizes if size > 0]
    largest = max(sizes, default=0)
    return math.comb(len(sizes) + largest, largest) <= MOST_STATES


def best_parts(counts: Sequence[int], node_sizes: Sequence[int]) -> list[list[int]]:
    """How many slots of each node every DNN takes, with the least Eq. 4 over all placements.

    DNNs are placed one after another, large ones first, on any nodes with any split between them. The least
    loss of the remaining DNNs depends only on the free slots of the nodes, so each such state is solved once.

    Args:
        counts: slots of each DNN, >= 1, summing to at most the slots of the nodes.
        node_sizes: slots of each node, >= 0, of a small cluster, see `is_small`.

    Returns: slots by node, for each DNN.
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
    """Make a function from (first unplaced DNN, free slots) to (least loss, free slots after that DNN)."""
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
    """Yield each different way to take `need` slots from exactly `num_nodes` nodes, as parts per node.

    A node gives no more than the node before it with the same number of free slots (`most`, if that node
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

"""Map the trainers of one flotilla onto the GPUs of the allocation."""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcbal.cluster.layout import Cluster, num_nodes_used
from hpcbal.errors import PolicyError
from hpcbal.policies.flotilla import Flotilla

IntArray = npt.NDArray[np.int64]

# Scores are sums of quotients: equal ones may differ in the last digits with the order of the sum.
_SCORE_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Placement:
    """Which GPUs train which DNN.

    Attributes:
        gpus: GPUs of each DNN, ascending in the cluster's numbering; the first one's rank is the master.
        score: the loss of [FLEET] Eq. 4, > 0; lower is better.
    """

    gpus: Mapping[str, tuple[int, ...]]
    score: float


def placement_score(gpus: Mapping[str, Sequence[int]], cluster: Cluster) -> float:
    """Sum over the DNNs of (nodes involved) / (GPUs assigned).

    Args:
        gpus: GPUs of each DNN, at least one each.
        cluster: whose GPUs they are.

    Source: [FLEET] Eq. 4.
    """
    node_of_gpu = cluster.node_of_gpus()
    return math.fsum(num_nodes_used(own, node_of_gpu) / len(own) for own in gpus.values())


def assign_gpus(flotilla: Flotilla, cluster: Cluster, max_permutations: int = 1024) -> Placement:
    """Give every DNN its number of GPUs, on as few nodes as a bounded search finds.

    GPUs are handed out in a row, one DNN after the other, so only the order of the DNNs is searched:
    first those that fill whole nodes, then pairs that do so together, then the best found order of the rest.

    Extensions, each kept only where it scores better:
        - If the whole flotilla has at most `max_permutations` different orders, all are tried, so the score
          is the least that any order gives. Greedy stages alone can miss it.
        - Best fit instead of a row, large DNNs first and small DNNs first: a DNN goes where it leaves the
          least room, and GPUs may stay free in between. Only so can a flotilla that does not use all
          GPUs profit from that, or a large DNN be spread over what small ones leave.
        - The flotilla's own order, unsorted: the score is never worse than that of no policy at all.
    Nodes with unequal numbers of GPUs: the first two stages work on the nodes of the most frequent size and
    fill those first; other nodes follow, large ones first.

    Deviations from [FLEET] Alg. 3, which lost signs and set differences in print:
        - Lines 11 and 24 read `remaining = assigned`; it is `remaining` without `assigned`.
        - Line 21 deletes memo[m % G]; the entry to delete is that of the partner, memo[-m % G].
        - Line 15 overwrites an earlier DNN of equal remainder, which then can pair with none; we queue them.
        - Line 3 counts to N; it is N_k. The comment of line 35 means Eq. 4, not Eq. 7.
        - The search visits different sequences of GPU counts, as DNNs of equal counts are interchangeable,
          and begins with the orders that a heuristic finds good; [FLEET] only says that it stops at 1,024.

    Args:
        flotilla: DNNs and their numbers of GPUs.
        cluster: with at least as many GPUs.
        max_permutations: orders to try, >= 1.

    Raises: PolicyError: the flotilla needs more GPUs than there are, or an argument is out of range.
    Source: [FLEET] Sec. 4.3.2, Eq. 4, App. A, Alg. 3 and 4. No bound to the optimum of Eq. 4 is
        proved. Of all flotillas of up to 5 DNNs on up to 3 nodes, all 1,963 for equal nodes of up to 6 GPUs
        were placed optimally, and all but 11 of 13,683 for nodes of any 1 to 5 GPUs (at worst 1.2 times
        the optimum). bench/bench_flotilla.py measures it on random cases.
    """
    counts = flotilla.num_gpus
    if sum(counts) > cluster.num_gpus:
        raise PolicyError(
            f"the flotilla needs {sum(counts)} GPUs, the cluster has {cluster.num_gpus}; "
            "plan the flotilla for this cluster"
        )
    if min(counts, default=1) < 1 or max_permutations < 1:
        raise PolicyError(
            f"GPUs per DNN {counts}, max_permutations {max_permutations}: allowed: 1 or more everywhere"
        )
    if not counts:
        return Placement({}, 0.0)
    given = _Row(cluster, range(len(cluster.nodes)))
    row = _Row(cluster, _regular_nodes_first(cluster))
    options = [_in_stages(counts, row, max_permutations)]
    for whole in (row, given):
        if _num_orders(counts, max_permutations) <= max_permutations:
            options.append(_best_order(counts, whole, 0, max_permutations))
    options += [_best_fit(counts, cluster, large_first) for large_first in (True, False)]
    options.append(given.hand_out(range(len(counts)), counts))
    gpus = [dict(zip(flotilla.dnn_ids, option, strict=True)) for option in options]
    scores = [round(placement_score(option, cluster), _SCORE_DIGITS) for option in gpus]
    best = gpus[scores.index(min(scores))]  # the first of equals: the paper's where it is as good
    return Placement(best, placement_score(best, cluster))


class _Row:
    """The GPUs of a cluster in a row, node after node in a chosen order."""

    def __init__(self, cluster: Cluster, node_order: Iterable[int]) -> None:
        first_gpu = [0, *itertools.accumulate(node.num_gpus for node in cluster.nodes)]
        order = [i for i in node_order if cluster.nodes[i].num_gpus > 0]
        self.sizes = [cluster.nodes[i].num_gpus for i in order]
        self._gpus = [j for i in order for j in range(first_gpu[i], first_gpu[i + 1])]
        self._node: IntArray = np.repeat(np.arange(len(order)), self.sizes)  # place in the row of each GPU

    def regular_size(self) -> int:
        return self.sizes[0]

    def num_regular_gpus(self) -> int:
        """GPUs of the leading nodes of equal size."""
        return sum(itertools.takewhile(lambda size: size == self.sizes[0], self.sizes))

    def hand_out(self, order: Iterable[int], counts: Sequence[int]) -> list[tuple[int, ...]]:
        """GPUs of each DNN if they are handed out in this order: Alg. 4."""
        gpus: list[tuple[int, ...]] = [()] * len(counts)
        j = 0
        for i in order:
            gpus[i] = tuple(sorted(self._gpus[j : j + counts[i]]))
            j += counts[i]
        return gpus

    def scores(self, counts: IntArray, start: int) -> npt.NDArray[np.float64]:
        """Eq. 4 of many orders at once, from GPU `start` of the row.

        Args:
            counts: GPUs of the DNN that comes first, second, ...; shape (num_orders, num_dnns).

        Returns: scores, shape (num_orders,).
        """
        end = start + np.cumsum(counts, axis=1)
        num_nodes = self._node[end - 1] - self._node[end - counts] + 1
        scores: npt.NDArray[np.float64] = np.round((num_nodes / counts).sum(axis=1), _SCORE_DIGITS)
        return scores

    def fitting_order(self, counts: Sequence[int], start: int) -> list[int]:
        """The counts in an order that crosses few node borders: always the largest that fits."""
        num_waiting = Counter(counts)
        distinct = sorted(num_waiting)
        borders = list(itertools.accumulate(self.sizes))
        order: list[int] = []
        j = start
        while distinct:
            room = borders[bisect.bisect_right(borders, j)] - j
            # Where nothing fits, a large DNN loses least by crossing: Eq. 4 divides by its GPUs.
            m = distinct[bisect.bisect_right(distinct, room) - 1]  # -1 is the largest
            order.append(m)
            j += m
            num_waiting[m] -= 1
            if not num_waiting[m]:
                distinct.remove(m)
        return order


def _regular_nodes_first(cluster: Cluster) -> list[int]:
    """Node indices: those of the most frequent size (the larger of equals), then the others by size."""
    sizes = [node.num_gpus for node in cluster.nodes]
    frequency = Counter(size for size in sizes if size > 0)
    regular = max(frequency, key=lambda size: (frequency[size], size), default=0)
    return sorted(range(len(sizes)), key=lambda i: (sizes[i] != regular, -sizes[i], i))


def _in_stages(counts: Sequence[int], row: _Row, max_permutations: int) -> list[tuple[int, ...]]:
    """Alg. 3: whole nodes, pairs that fill nodes, then the best found order of the rest."""
    size, capacity = row.regular_size(), row.num_regular_gpus()
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
    order = placed + [rest[k] for k in _order_of_least_score(rest_counts, row, used, max_permutations)]
    return row.hand_out(order, counts)


def _best_order(counts: Sequence[int], row: _Row, start: int, max_permutations: int) -> list[tuple[int, ...]]:
    return row.hand_out(_order_of_least_score(counts, row, start, max_permutations), counts)


def _order_of_least_score(counts: Sequence[int], row: _Row, start: int, max_permutations: int) -> list[int]:
    """Indices of `counts` in the best order of two heuristic ones and `max_permutations` more."""
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


def _num_orders(counts: Sequence[int], limit: int) -> int:
    """Different orders of a multiset, or `limit` + 1 if there are more."""
    total, num_orders = 0, 1
    for multiplicity in Counter(counts).values():
        for k in range(1, multiplicity + 1):
            total += 1
            num_orders = num_orders * total // k
        if num_orders > limit:
            return limit + 1
    return num_orders


def _best_fit(counts: Sequence[int], cluster: Cluster, large_first: bool) -> list[tuple[int, ...]]:
    """Each DNN takes the fullest node that has room for it, or the emptiest nodes and then such a one.

    Large ones first packs tightly; small ones first leaves splitting to the large, which lose least by it.
    """
    first_gpu = [0, *itertools.accumulate(node.num_gpus for node in cluster.nodes)]
    end_of_node = first_gpu[1:]
    nodes_by_room: list[list[int]] = [
        [] for _ in range(cluster.max_gpus_per_node + 1)
    ]  # heaps of node indices
    for i, node in enumerate(cluster.nodes):
        heapq.heappush(nodes_by_room[node.num_gpus], i)
    gpus: list[list[int]] = [[] for _ in counts]
    for i in sorted(range(len(counts)), key=lambda i: (-counts[i] if large_first else counts[i], i)):
        need = counts[i]
        while need > 0:
            fits = next((room for room in range(need, len(nodes_by_room)) if nodes_by_room[room]), None)
            room = max(r for r, nodes in enumerate(nodes_by_room) if nodes) if fits is None else fits
            node_index, take = heapq.heappop(nodes_by_room[room]), min(need, room)
            start = end_of_node[node_index] - room
            gpus[i] += range(start, start + take)
            heapq.heappush(nodes_by_room[room - take], node_index)
            need -= take
        gpus[i].sort()
    return [tuple(own) for own in gpus]

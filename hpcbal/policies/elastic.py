"""Share slots among DNNs that train at their own pace, so that all of them end as early as possible."""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

LEAST_GAIN = 0.02
"""A DNN gets more slots only if it is at least this much faster with them."""

Slots = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ladder:
    """The numbers of slots that are worth giving to a DNN.

    With each rung the DNN is faster by `LEAST_GAIN` at least, and a sample costs more slot-seconds: a number
    of slots is no rung if a DNN that is as fast with another one costs less. The first rung is the cheapest.

    Attributes:
        counts: number of slots of each rung, >= 1.
        rates: samples/s with that number, ascending; shape (len(counts),).
        smaller: samples/s with 1, 2, ... slots, up to the first rung exclusive.
    """

    counts: tuple[int, ...]
    rates: tuple[float, ...]
    smaller: tuple[float, ...] = ()

    @classmethod
    def of(cls, rates: Sequence[float]) -> Ladder:
        """The ladder of a DNN with these rates, samples/s > 0, on 1, 2, ... slots."""
        counts: list[int] = []
        cheapest, slowest = float("inf"), float("inf")
        for count in sorted(range(1, len(rates) + 1), key=lambda m: (-rates[m - 1], m)):
            cost, rate = count / rates[count - 1], rates[count - 1]
            if cost <= cheapest and rate < slowest:
                counts.append(count)
                cheapest, slowest = cost, rate
        counts.reverse()
        kept = counts[:1]
        for count in counts[1:]:
            if rates[count - 1] >= (1.0 + LEAST_GAIN) * rates[kept[-1] - 1]:
                kept.append(count)
        return cls(tuple(kept), tuple(rates[m - 1] for m in kept), tuple(rates[: kept[0] - 1]))

    def rung_within(self, num_slots: int) -> int:
        """Index of the last rung with at most `num_slots` slots; -1 if the first one has more."""
        return bisect.bisect_right(self.counts, num_slots) - 1

    def within(self, num_slots: int) -> int:
        """The best number of slots among 1..num_slots, for a DNN that cannot have more."""
        rung = self.rung_within(num_slots)
        if rung >= 0:
            return self.counts[rung]
        return max(range(1, num_slots + 1), key=lambda m: (self.smaller[m - 1], -m))

    def rate(self, num_slots: int) -> float:
        """Samples/s on `num_slots` >= 1 slots, which are those of the rung at or below."""
        rung = self.rung_within(num_slots)
        return self.rates[rung] if rung >= 0 else self.smaller[num_slots - 1]


@dataclass(frozen=True, slots=True)
class Need:
    """A DNN that is not done.

    Attributes:
        samples: samples that it probably trains from now on, > 0.
        ladder: numbers of slots that it may have.
    """

    samples: float
    ladder: Ladder

    def seconds(self, num_slots: int) -> float:
        """Time that it needs on `num_slots` slots."""
        return self.samples / self.ladder.rate(num_slots)


def allotment(needs: Sequence[Need], num_slots: int) -> list[int]:
    """Give each DNN as few slots as let all of them end in the shortest time in which the slots can do it.

    That time is the larger of the time of the longest DNN, and of all slot-seconds divided by the slots.

    Args:
        needs: of the DNNs.
        num_slots: number of slots, >= 1.

    Returns: number of slots of each DNN.
    Source: [MOUNIE], the canonical allotment.
    """
    rungs = [0] * len(needs)
    seconds = [need.samples / need.ladder.rates[0] for need in needs]
    work = sum(s * need.ladder.counts[0] for s, need in zip(seconds, needs, strict=True))
    longest = [(-s, i) for i, s in enumerate(seconds)]
    heapq.heapify(longest)
    while longest and work < -longest[0][0] * num_slots:
        i = longest[0][1]
        counts, higher = needs[i].ladder.counts, rungs[i] + 1
        if higher == len(counts) or counts[higher] > num_slots:
            break
        shorter = needs[i].samples / needs[i].ladder.rates[higher]
        more = work + shorter * counts[higher] - seconds[i] * counts[rungs[i]]
        if more >= seconds[i] * num_slots:
            break  # there is too much work then to end before this DNN does now
        rungs[i], seconds[i], work = higher, shorter, more
        heapq.heapreplace(longest, (-shorter, i))
    return [need.ladder.counts[rung] for need, rung in zip(needs, rungs, strict=True)]


def share_slots(needs: Mapping[str, Need], num_slots: int) -> dict[str, int]:
    """Share the slots out so that the last DNN ends as early as possible.

    DNNs that need nearly all of the time of the `allotment` start first; others may wait, because it leaves
    them time. Slots that are left when all have theirs shorten the DNNs that end last. While DNNs need one
    slot each, those with the most work start first. Near the end, those that are left have many slots.

    Args:
        needs: DNNs by name; the order decides between equals.
        num_slots: number of slots, >= 1.

    Returns: number of slots of each DNN, those that need longest first; 0: it can wait for slots of others,
        and still end in time.
    """
    names, each = list(needs), list(needs.values())
    counts = allotment(each, num_slots)
    order = sorted(range(len(names)), key=lambda i: (-each[i].seconds(counts[i]), i))
    left, given = num_slots, [0] * len(names)
    for i in order:
        if left == 0:
            break
        given[i] = min(counts[i], each[i].ladder.within(left))
        left -= given[i]
    _use_up(given, left, each)
    return {names[i]: given[i] for i in order}


def _use_up(given: list[int], left: int, needs: Sequence[Need]) -> None:
    """Give slots that are left to the DNN that ends last, again and again, as long as that gains."""
    longest = [(-needs[i].seconds(count), i) for i, count in enumerate(given) if count]
    heapq.heapify(longest)
    while left and longest:
        i = longest[0][1]
        counts, rung = needs[i].ladder.counts, needs[i].ladder.rung_within(given[i]) + 1
        if rung == len(counts) or counts[rung] - given[i] > left:
            heapq.heappop(longest)
            continue
        left -= counts[rung] - given[i]
        given[i] = counts[rung]
        heapq.heapreplace(longest, (-needs[i].seconds(given[i]), i))


class Lengths:
    """How many epochs DNNs train whose length is not known, judged by the others of the ensemble.

    As long as no DNN has ended, all are expected to train twice as many epochs as the one that has trained
    the most. Later a DNN is expected to train as many as those that ended after at least one epoch more than
    it has; one that has outlived all others may end with the next epoch.

    Args:
        ended: epochs of the DNNs that have ended.
        most: epochs of the DNN that has trained the most.
    """

    def __init__(self, ended: Iterable[int], most: int) -> None:
        self._ended = sorted(ended)
        self._sums = [0, *itertools.accumulate(self._ended)]
        self._most = max(1, most)

    def epochs_left(self, epochs: int) -> float:
        """Expected epochs, >= 1, of a DNN that has trained `epochs`."""
        if not self._ended:
            return float(max(1, 2 * self._most - epochs))
        first = bisect.bisect_right(self._ended, epochs)
        number = len(self._ended) - first
        return (self._sums[-1] - self._sums[first]) / number - epochs if number else 1.0


def choose_slots(
    number: int,
    own: Collection[int],
    free: Collection[int],
    built: Collection[int],
    node_of_slot: Sequence[int],
) -> Slots:
    """Choose slots for a DNN: on as few nodes as possible, then those that it has, or where it is built.

    Args:
        number: number of slots, 1..len(own | free).
        own: slots that it has.
        free: slots that nobody has.
        built: slots whose ranks hold its network.
        node_of_slot: node index of each slot.

    Returns: ascending. A group that fits into one node gets the fullest such node that leaves others room.
    """
    usable = set(own) | set(free)
    on_node = Counter(node_of_slot[slot] for slot in usable)
    owned = Counter(node_of_slot[slot] for slot in own)
    held = Counter(node_of_slot[slot] for slot in built if slot in usable)
    fitting = [node for node, count in on_node.items() if count >= number]
    if fitting:
        order = sorted(fitting, key=lambda n: (-owned[n], -held[n], on_node[n], n))[:1]
    else:
        order = sorted(on_node, key=lambda n: (-on_node[n], -owned[n], -held[n], n))
    place = {node: i for i, node in enumerate(order)}
    row = sorted(
        (slot for slot in usable if node_of_slot[slot] in place),
        key=lambda slot: (place[node_of_slot[slot]], slot not in own, slot not in built, slot),
    )
    return tuple(sorted(row[:number]))

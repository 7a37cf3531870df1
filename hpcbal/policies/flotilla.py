"""Group DNNs into flotillas that are trained together."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcbal.errors import PolicyError
from hpcbal.events.ensemble import Delta
from hpcbal.policies.rates import RateTable

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class Ladders:
    """One ladder per DNN: its rungs are the counts m with r(m) > r(m') for all m' < m.

    The first rung is m = 1. A count that is not a rung wastes slots: some smaller count is at least as fast.
    Measured rates have such counts because of noise and where a group crosses nodes, and so are all counts
    beyond the peak of [FLEET] Eq. 5. Rates ascend along a ladder, so the rung nearest to a given rate is
    found by bisection, for all DNNs at once.

    Args:
        rates: finite, shape (num_dnns, max_slots), max_slots >= 1; column m - 1 holds the rates on m slots.
    """

    def __init__(self, rates: FloatArray) -> None:
        num_dnns, max_slots = rates.shape
        is_rung = np.ones(rates.shape, dtype=np.bool_)
        np.greater(rates[:, 1:], np.maximum.accumulate(rates, axis=1)[:, :-1], out=is_rung[:, 1:])
        # Rungs of all ladders in a row; `_cell` = dnn*max_slots + (m - 1) ascends through all of them.
        self._cell: IntArray = np.flatnonzero(is_rung)
        self._rate: FloatArray = rates[is_rung]
        self._max_slots = max_slots
        self._start: IntArray = np.searchsorted(self._cell, np.arange(num_dnns + 1) * max_slots)

    def nearest(self, dnns: IntArray, target: float, limit: int) -> tuple[FloatArray, IntArray]:
        """The rung of each DNN whose rate is nearest to `target`; of two equally near rungs the lower one.

        Args:
            dnns: row indices, shape (n,).
            target: samples/s.
            limit: largest count allowed, >= 1.

        Returns: distances |r(m) - target| in samples/s and counts m in 1..limit, each of shape (n,).
        """
        start = self._start[dnns]
        end = np.searchsorted(self._cell, dnns * self._max_slots + min(limit, self._max_slots))
        above = self._first_reaching(start, end, target)
        below = np.maximum(above - 1, start)
        above = np.minimum(above, end - 1)
        distance_below = np.abs(self._rate[below] - target)
        distance_above = np.abs(self._rate[above] - target)
        rung = np.where(distance_below <= distance_above, below, above)
        return np.minimum(distance_below, distance_above), self._cell[rung] % self._max_slots + 1

    def rungs(self, dnn: int, first: int, last: int) -> tuple[list[int], list[float]]:
        """Counts and rates of the rungs of one DNN with first <= m <= last."""
        base = dnn * self._max_slots
        begin, end = np.searchsorted(self._cell, [base + first - 1, base + min(last, self._max_slots)])
        return (self._cell[begin:end] - base + 1).tolist(), self._rate[begin:end].tolist()

    def _first_reaching(self, start: IntArray, end: IntArray, target: float) -> IntArray:
        """First rung in start..end-1 of each ladder with a rate >= target, or `end`."""
        low, high = start, end
        while (open_ := low < high).any():
            middle = (low + high) >> 1
            # A finished search may point just behind the last ladder.
            reached = self._rate[np.minimum(middle, len(self._rate) - 1)] >= target
            low = np.where(open_ & ~reached, middle + 1, low)
            high = np.where(open_ & reached, middle, high)
        return low


@dataclass(frozen=True, slots=True)
class Flotilla:
    """DNNs that train together, and the slots of each.

    Attributes:
        dnn_ids: DNNs in the order in which they were chosen; the fastest on one slot first.
        num_slots: slots of each DNN, >= 1, summing to at most the slots of the allocation.
        rates_before: samples/s with the slots from Eq. 3, before the extra ones.
        rates: samples/s with `num_slots`; never below `rates_before`.
        reference_rate: r_fast of Eq. 3, samples/s.
    """

    dnn_ids: tuple[str, ...]
    num_slots: tuple[int, ...]
    rates_before: tuple[float, ...]
    rates: tuple[float, ...]
    reference_rate: float


class FlotillaPlanner:
    """Forms flotillas of some of the DNNs of an ensemble, whose rates it looks up and sorts only once.

    The candidate that is fastest on one slot sets the reference rate and takes one slot. Then DNNs join one
    at a time: the next one is the DNN whose rate on some number of the remaining slots is closest to the
    reference, as long as it is within delta. The remaining slots go to the slowest DNN, one by one.

    Ties: among equally fast (or slow) DNNs, the first in the order of `candidates` (or of joining) is chosen;
    Eq. 3 prefers fewer slots, then the order of `candidates`.

    Deviations from [FLEET]; the first two change nothing if rates grow with every slot:
      - Eq. 3 skips counts on which a DNN is no faster than on fewer (see `Ladders`). Beyond its peak, Eq. 5
        falls slowly, so on large allocations it passes the reference rate a second time, in finer steps than
        on its way up. Eq. 3 to the letter would then give a DNN hundreds of slots to be as fast as on five,
        against Principle 2.
      - Extra slots go to the slowest DNN that gains from them, in the smallest portion that raises its rate
        (one slot, unless its rate dips first). Alg. 2 gives them to the slowest DNN in any case: a DNN whose
        rate falls with m stays the slowest and gets slower with every slot, until it has them all. We skip a
        DNN that gains nothing and take the next slowest, which then runs faster once the slow one leaves the
        round; an idle slot would help no DNN. Slots from which no DNN gains stay unassigned.
      - `max_slots_per_dnn` limits both steps, and so does the batch size of each DNN: a slot without a sample
        of a step would only take part in the sum of gradients.
      - `delta` may be relative, so that one value suits ensembles of any speed.
      - Alg. 2, line 14 indexes m_k by DNN although m_k is ordered by place in the flotilla; we use the
        latter. The constraint m <= M - M_k of Eq. 3 limits its own range m = 1..M.

    A run, and even more a simulated one, forms hundreds of flotillas from the same rates; each has fewer
    candidates than the one before.

    Args:
        dnn_ids: all DNNs that may become candidates, at least one, no repetitions.
        rates: rates of all of them.
        num_slots: the largest M, >= 1.
        delta: threshold between rates.
        max_slots_per_dnn: most slots of one DNN, >= 1; None: no limit.
        batch_sizes: samples per step of each DNN, >= 1; a DNN never gets more slots than that. A DNN that is
            missing here has no such limit.

    Raises: PolicyError: if an argument is out of range, or a rate is not known.
    """

    def __init__(
        self,
        dnn_ids: Sequence[str],
        rates: RateTable,
        num_slots: int,
        delta: Delta,
        max_slots_per_dnn: int | None = None,
        batch_sizes: Mapping[str, int] | None = None,
    ) -> None:
        if not dnn_ids:
            raise PolicyError("a flotilla was requested without candidates; give at least one DNN")
        repeated = sorted(dnn_id for dnn_id, count in Counter(dnn_ids).items() if count > 1)
        if repeated:
            raise PolicyError(f"candidates occur more than once: {', '.join(repeated)}")
        for name, value in (("num_slots", num_slots), ("max_slots_per_dnn", max_slots_per_dnn)):
            if value is not None and value < 1:
                raise PolicyError(f"{name}: got {value}, allowed: 1 or more")
        self._dnn_ids = tuple(dnn_ids)
        self._row_of = {dnn_id: row for row, dnn_id in enumerate(dnn_ids)}
        self._num_slots = num_slots
        self._delta = delta
        most = num_slots if max_slots_per_dnn is None else min(num_slots, max_slots_per_dnn)
        self._rates: FloatArray = rates.matrix(dnn_ids, most)
        for dnn_id, row in self._row_of.items():
            batch_size = most if batch_sizes is None else batch_sizes.get(dnn_id, most)
            if batch_size < 1:
                raise PolicyError(f"batch size of {dnn_id!r}: got {batch_size}, allowed: 1 or more")
            if batch_size < most:
                self._rates[row, batch_size:] = 0.0  # slower than on one slot, so these counts are no rungs
        self._ladders = Ladders(self._rates)
        self._last: tuple[tuple[str, ...], int, Flotilla] | None = None
        self._scopes: list[
            tuple[float, float, float]
        ] = []  # reference, farthest member, nearest of the others

    def all_flotillas(self, candidates: Sequence[str], num_slots: int) -> list[Flotilla]:
        """All flotillas until the last candidate, if the DNNs of each flotilla converge together.

        Arguments and errors as for `flotilla`, but `candidates` may be empty.

        Source: [FLEET] Alg. 1 without line 6.
        """
        waiting = dict.fromkeys(candidates)
        flotillas = []
        while waiting:
            flotilla = self.flotilla(tuple(waiting), num_slots)
            for dnn_id in flotilla.dnn_ids:
                del waiting[dnn_id]
            flotillas.append(flotilla)
        return flotillas

    def flotilla(self, candidates: Sequence[str], num_slots: int) -> Flotilla:
        """Choose the DNNs of the next flotilla and the number of slots of each.

        The last flotilla is kept: whether a round ends depends on the flotilla that would follow it.

        Args:
            candidates: some of the DNNs, at least one, no repetitions.
            num_slots: M, from 1 to the largest.

        Raises: PolicyError: if a candidate is none of the DNNs, or there is none, or `num_slots` is out of
            range.
        Source: [FLEET] Sec. 4.3.2, Eq. 3, Alg. 2.
        """
        asked = tuple(candidates)
        if self._last is None or self._last[:2] != (asked, num_slots):
            rows = np.fromiter(map(self._row_of.get, asked, itertools.repeat(-1)), np.int64, len(asked))
            if not asked or rows.min() < 0 or not 1 <= num_slots <= self._num_slots:
                raise PolicyError(
                    f"a flotilla of {len(asked)} candidates for {num_slots} slots was requested, allowed: at "
                    f"least one of the {len(self._row_of)} DNNs, on 1 to {self._num_slots} slots"
                )
            self._last = (asked, num_slots, self._form(rows, num_slots))
        return self._last[2]

    def gives_same(self, delta: Delta) -> bool:
        """Whether this delta would have given all flotillas that were formed so far."""
        return all(
            farthest <= delta.samples_per_s(reference) < nearest
            for reference, farthest, nearest in self._scopes
        )

    def _form(self, rows: npt.NDArray[np.int64], num_slots: int) -> Flotilla:
        chosen = self._choose(rows, num_slots)
        counts = self._give_extra_slots(chosen, num_slots)
        members = [row for row, _ in chosen]
        return Flotilla(
            dnn_ids=tuple(self._dnn_ids[row] for row in members),
            num_slots=tuple(counts),
            rates_before=tuple(float(self._rates[row, m - 1]) for row, m in chosen),
            rates=tuple(float(self._rates[row, m - 1]) for row, m in zip(members, counts, strict=True)),
            reference_rate=float(self._rates[members[0], 0]),
        )

    def _choose(self, rows: npt.NDArray[np.int64], num_slots: int) -> list[tuple[int, int]]:
        """(row, number of slots) of the members by Eq. 3, in the order of joining."""
        fastest = int(rows[np.argmax(self._rates[rows, 0])])  # argmax takes the first among equals
        reference = float(self._rates[fastest, 0])
        delta = self._delta.samples_per_s(reference)
        chosen, free = [(fastest, 1)], num_slots - 1
        farthest, nearest = 0.0, np.inf
        others = rows[rows != fastest]
        # Best (distance, count) of each DNN under a limit that only falls: it stays the best until its count
        # no longer fits, and only then is it computed again.
        distance = np.full(len(others), -1.0)
        count = np.full(len(others), num_slots + 1, dtype=np.int64)
        while free > 0 and len(chosen) < len(rows):
            stale = np.flatnonzero((count > free) & (distance <= delta))
            distance[stale], count[stale] = self._ladders.nearest(others[stale], reference, free)
            least = distance.min()
            if least > delta:
                nearest = least
                break
            farthest = max(farthest, float(least))
            ties = np.flatnonzero(distance == least)
            best = int(ties[np.argmin(count[ties])])
            chosen.append((int(others[best]), int(count[best])))
            free -= int(count[best])
            distance[best] = np.inf
        self._scopes.append((reference, farthest, float(nearest)))
        return chosen

    def _give_extra_slots(self, chosen: Sequence[tuple[int, int]], num_slots: int) -> list[int]:
        """Number of slots of each member including the extra ones, in the order of joining."""
        counts = [m for _, m in chosen]
        free = num_slots - sum(counts)
        ladders = [self._ladders.rungs(row, m, m + free) for row, m in chosen]
        slowest = [(rates[0], place) for place, (_, rates) in enumerate(ladders)]
        step = [0] * len(chosen)
        heapq.heapify(slowest)
        while free > 0 and slowest:
            _, place = slowest[0]
            steps, rates = ladders[place]
            nxt = step[place] + 1
            if nxt == len(steps) or steps[nxt] - counts[place] > free:
                heapq.heappop(slowest)  # gains nothing from the remaining slots, which only get fewer
                continue
            free -= steps[nxt] - counts[place]
            counts[place], step[place] = steps[nxt], nxt
            heapq.heapreplace(slowest, (rates[nxt], place))
        return counts

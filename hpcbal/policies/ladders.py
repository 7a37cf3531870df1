"""Find the numbers of GPUs worth giving to a DNN: those on which it is faster than on any fewer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class Ladders:
    """One ladder per DNN: its rungs are the counts m with r(m) > r(m') for all m' < m.

    The first rung is m = 1. A count that is not a rung wastes GPUs: some smaller count is at least as fast.
    Measured rates have such counts because of noise and where a group crosses nodes, and so are all counts
    beyond the peak of [FLEET] Eq. 5. Rates ascend along a ladder, so the rung nearest to a given rate is
    found by bisection, for all DNNs at once.

    Args:
        rates: finite, shape (num_dnns, max_gpus), max_gpus >= 1; column m - 1 holds the rates on m GPUs.
    """

    def __init__(self, rates: FloatArray) -> None:
        num_dnns, max_gpus = rates.shape
        is_rung = np.ones(rates.shape, dtype=np.bool_)
        np.greater(rates[:, 1:], np.maximum.accumulate(rates, axis=1)[:, :-1], out=is_rung[:, 1:])
        # Rungs of all ladders in a row; `_cell` = dnn*max_gpus + (m - 1) ascends through all of them.
        self._cell: IntArray = np.flatnonzero(is_rung)
        self._rate: FloatArray = rates[is_rung]
        self._max_gpus = max_gpus
        self._start: IntArray = np.searchsorted(self._cell, np.arange(num_dnns + 1) * max_gpus)

    def nearest(self, dnns: IntArray, target: float, limit: int) -> tuple[FloatArray, IntArray]:
        """The rung of each DNN whose rate is nearest to `target`; of two equally near rungs the lower one.

        Args:
            dnns: row indices, shape (n,).
            target: samples/s.
            limit: largest count allowed, >= 1.

        Returns: distances |r(m) - target| in samples/s and counts m in 1..limit, each of shape (n,).
        """
        start = self._start[dnns]
        end = np.searchsorted(self._cell, dnns * self._max_gpus + min(limit, self._max_gpus))
        above = self._first_reaching(start, end, target)
        below = np.maximum(above - 1, start)
        above = np.minimum(above, end - 1)
        distance_below = np.abs(self._rate[below] - target)
        distance_above = np.abs(self._rate[above] - target)
        rung = np.where(distance_below <= distance_above, below, above)
        return np.minimum(distance_below, distance_above), self._cell[rung] % self._max_gpus + 1

    def rungs(self, dnn: int, first: int, last: int) -> tuple[list[int], list[float]]:
        """Counts and rates of the rungs of one DNN with first <= m <= last."""
        base = dnn * self._max_gpus
        begin, end = np.searchsorted(self._cell, [base + first - 1, base + min(last, self._max_gpus)])
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

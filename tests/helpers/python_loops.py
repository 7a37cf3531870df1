"""The other compiled loops once more in Python: oracles that are slow, and plain to read."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from heapq import heapify, heappop, heapreplace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.paramserver.api.columns import IntArray
from hpcbal.paramserver.apps.descent import Floats, Penalty, Terms
from hpcbal.paramserver.apps.lda import Counts, Int32Array, Prior
from hpcbal.policies.batching.time_curves import FloatArray


class ListParts:
    """`SortedParts` as sorted lists of Python.

    Args:
        sizes: of the samples by worker, in ascending order for each, shape (num_samples,).
        ids: of these samples.
        bounds: worker j has the samples bounds[j] to bounds[j + 1] - 1, shape (num_workers + 1,).
    """

    def __init__(self, sizes: FloatArray, ids: IntArray, bounds: IntArray) -> None:
        spans = list(pairwise(bounds.tolist()))
        self._ids = [ids[first:last].tolist() for first, last in spans]
        self._sizes = [sizes[first:last].tolist() for first, last in spans]

    def nth(self, number: int) -> tuple[int, int]:
        for worker, own in enumerate(self._ids):
            if number < len(own):
                return worker, number
            number -= len(own)
        raise AssertionError("internal error: there are not so many samples left")

    def draw(
        self, worker: int, place: int, slopes: FloatArray, launches: FloatArray, num_samples: int
    ) -> list[IntArray]:
        slope_of, launch_of = slopes.tolist(), launches.tolist()
        drawn: list[list[int]] = [[] for _ in self._ids]
        slowest_s = launch_of[worker] + slope_of[worker] * self._take(worker, place, drawn)
        finish = [(slowest_s if j == worker else launch_of[j], j) for j in range(len(self._ids))]
        heapify(finish)
        for _ in range(num_samples - 1):
            while not self._ids[finish[0][1]]:
                heappop(finish)
            now_s, worker = finish[0]
            fits = bisect_right(self._sizes[worker], (slowest_s - now_s) / slope_of[worker])
            now_s += slope_of[worker] * self._take(worker, max(fits - 1, 0), drawn)
            slowest_s = max(slowest_s, now_s)
            heapreplace(finish, (now_s, worker))
        return [np.array(own, np.int64) for own in drawn]

    def _take(self, worker: int, place: int, drawn: list[list[int]]) -> float:
        """Move one sample into the step; returns its size."""
        drawn[worker].append(self._ids[worker].pop(place))
        size: float = self._sizes[worker].pop(place)
        return size


def descend_in_python(
    terms: Terms,
    mean_squares: Floats,
    weights: Floats,
    residual: Floats,
    expected: Floats,
    change: Floats,
    penalty: Penalty,
) -> None:
    every_row = np.arange(len(residual))
    rows = [every_row if terms.places is None else terms.places[own] for own in _spans(terms)]
    values = [terms.values[own] for own in _spans(terms)]
    before = weights.copy()

    def improve(features: Iterable[int]) -> bool:
        return sum(map(has_improved, features)) > 0

    def has_improved(j: int) -> bool:
        curvature = penalty.damping * mean_squares[j]
        curvature = curvature if curvature > 0.0 else 1.0
        goal = weights[j] + values[j] @ expected[rows[j]] / penalty.num_observations / curvature
        weight = np.sign(goal) * max(abs(goal) - penalty.l1 / curvature, 0.0)
        by = weight - weights[j]
        if by == 0.0:
            return False
        np.subtract.at(expected, rows[j], penalty.damping * by * values[j])
        weights[j] = weight
        return True

    has_changed = improve(range(len(weights)))
    active = np.flatnonzero(weights).tolist()
    for _ in range(penalty.passes - 1):
        if not has_changed:
            break
        has_changed = improve(active)
    for j in np.flatnonzero(weights != before).tolist():
        np.subtract.at(change, rows[j], (weights[j] - before[j]) * values[j])
    expected[:] = residual


def _spans(terms: Terms) -> list[slice]:
    return [slice(a, b) for a, b in zip(terms.starts[:-1].tolist(), terms.starts[1:].tolist(), strict=True)]


Array = NDArray[Any]
_TINY = 1e-12


def improve_in_python(factors: Array, products: Array, gram: Array, penalty: float, sweeps: int) -> None:
    for k in list(range(factors.shape[1])) * sweeps:
        curvature = gram[k, k] + penalty
        if curvature > _TINY:
            slope = products[:, k] - factors @ gram[:, k] - penalty * factors[:, k]
            factors[:, k] = np.maximum(factors[:, k] + slope / curvature, 0.0)


def sample_in_python(
    rows: Int32Array,
    starts: IntArray,
    uniforms: NDArray[np.float64],
    topics: Int32Array,
    shared: Counts,
    prior: Prior,
) -> None:
    sampler = _Sampler(shared, prior)
    before = topics.tolist()
    for first, last in pairwise(starts.tolist()):
        document = range(first, last)
        topics[first:last] = sampler.sample_document(
            [int(rows[t]) for t in document], [float(uniforms[t]) for t in document], before[first:last]
        )
    for row, old, new in zip(rows.tolist(), before, topics.tolist(), strict=True):
        for k, by in ((old, -1), (new, 1)):
            shared.deltas[row, k] += by
            shared.total_deltas[k] += by


class _Sampler:
    """Copies of the counts as lists, and three sums of weights, all as in `_gibbs.c`."""

    def __init__(self, shared: Counts, prior: Prior) -> None:
        self._counts: dict[int, list[int]] = {}
        self._listed: dict[int, list[int]] = {}
        self._pulled = shared.counts
        self._totals: list[int] = shared.totals.tolist()
        self._prior = prior
        self._inverse = [1.0 / (float(total) + prior.beta_sum) for total in self._totals]
        self._factor = [prior.alpha * inverse for inverse in self._inverse]
        self._own = [0] * len(self._totals)
        self._own_listed: list[int] = []
        self._smoothing = self._documents = 0.0

    def sample_document(self, rows: list[int], uniforms: list[float], topics: list[int]) -> list[int]:
        """The new topics of a document's tokens."""
        self._start(topics)
        new = []
        for row, uniform, old in zip(rows, uniforms, topics, strict=True):
            counts, listed = self._row(row)
            self._count(old, -1)
            counts[old] -= 1
            k = self._draw(counts, listed, uniform)
            if counts[k] == 0 and k not in listed:
                listed.append(k)
            counts[k] += 1
            self._count(k, 1)
            new.append(k)
        for k in self._own_listed:
            self._own[k] = 0
            self._factor[k] = self._prior.alpha * self._inverse[k]
        return new

    def _start(self, topics: list[int]) -> None:
        alpha, beta = self._prior.alpha, self._prior.beta
        self._own_listed = []
        for k in topics:
            if self._own[k] == 0:
                self._own_listed.append(k)
            self._own[k] += 1
        sum_ = 0.0
        for inverse in self._inverse:
            sum_ += inverse
        self._smoothing = alpha * beta * sum_
        sum_ = 0.0
        for k in self._own_listed:
            sum_ += float(self._own[k]) * self._inverse[k]
            self._factor[k] = (float(self._own[k]) + alpha) * self._inverse[k]
        self._documents = beta * sum_

    def _row(self, row: int) -> tuple[list[int], list[int]]:
        if row not in self._counts:
            self._counts[row] = self._pulled[row].tolist()
            self._listed[row] = np.flatnonzero(self._pulled[row] > 0).tolist()
        return self._counts[row], self._listed[row]

    def _count(self, k: int, by: int) -> None:
        """Add the token to topic k, or take it away."""
        alpha, beta, old = self._prior.alpha, self._prior.beta, self._inverse[k]
        self._totals[k] += by
        inverse = 1.0 / (float(self._totals[k]) + self._prior.beta_sum)
        self._smoothing += alpha * beta * (inverse - old)
        self._documents -= beta * (float(self._own[k]) * old)
        self._own[k] += by
        self._documents += beta * (float(self._own[k]) * inverse)
        self._inverse[k] = inverse
        self._factor[k] = (float(self._own[k]) + alpha) * inverse
        if by > 0 and self._own[k] == 1:
            self._own_listed.append(k)
        if by < 0 and self._own[k] == 0:
            self._own_listed[self._own_listed.index(k)] = self._own_listed[-1]
            self._own_listed.pop()

    def _draw(self, counts: list[int], listed: list[int], uniform: float) -> int:
        alpha, beta = self._prior.alpha, self._prior.beta
        sums, sum_ = [], 0.0
        for k in listed:
            sum_ += float(counts[k]) * self._factor[k]
            sums.append(sum_)
        x = uniform * (sum_ + self._documents + self._smoothing)
        if x < sum_:
            return listed[bisect_right(sums, x)]
        x -= sum_
        reached = 0.0
        if x < self._documents and self._own_listed:
            for k in self._own_listed:
                reached += beta * (float(self._own[k]) * self._inverse[k])
                if x < reached:
                    return k
            return self._own_listed[-1]
        x -= self._documents
        for k, inverse in enumerate(self._inverse[:-1]):
            reached += alpha * beta * inverse
            if x < reached:
                return k
        return len(self._inverse) - 1

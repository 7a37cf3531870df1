"""Sample topics as SparseLDA does: in C where it was built, else in Python, to the same last bit."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hpcbal.paramserver.contract import IntArray

Int32Array = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Prior:
    """Dirichlet priors.

    Attributes:
        alpha: of a topic in a document, > 0.
        beta: of a word in a topic, > 0.
        beta_sum: beta times the number of words.
    """

    alpha: float
    beta: float
    beta_sum: float


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """Counts that parts of a step share, as they were pulled, and what all parts together change.

    Attributes:
        counts: tokens of each word and topic, int32, shape (num_rows, num_topics). The same before and after
            every call.
        totals: tokens of each topic, int64, shape (num_topics,). The same before and after every call.
        listed: topics of each row whose counts are above 0, shape (num_rows, num_topics).
        num_listed: how many these are; -1: not listed yet. Shape (num_rows,).
        deltas, total_deltas: like `counts` and `totals`.
    """

    counts: Int32Array
    totals: IntArray
    listed: Int32Array
    num_listed: Int32Array
    deltas: Int32Array
    total_deltas: IntArray

    @classmethod
    def of(cls, counts: Int32Array, totals: IntArray) -> Counts:
        """Copy pulled counts and totals; nothing has changed yet."""
        return cls(
            np.array(counts, np.int32, order="C"),
            np.array(totals, np.int64).reshape(-1),
            np.empty(counts.shape, np.int32),
            np.full(len(counts), -1, np.int32),
            np.zeros(counts.shape, np.int32),
            np.zeros(totals.size, np.int64),
        )


Sample = Callable[[Int32Array, IntArray, NDArray[np.float64], Int32Array, Counts, Prior], None]
"""Draw a new topic for every token of some documents, one after another.

    Args: see `sample_in_python`."""


def sample_in_python(
    rows: Int32Array,
    starts: IntArray,
    uniforms: NDArray[np.float64],
    topics: Int32Array,
    shared: Counts,
    prior: Prior,
) -> None:
    """Draw a new topic for every token of some documents, one after another.

    Each draw sees the topics that earlier draws of this call gave, and no others of the step.

    Args:
        rows: the row of each token's word, int32, shape (num_tokens,).
        starts: document d has the tokens starts[d] to starts[d + 1] - 1, int64, shape (num_documents + 1,).
        uniforms: a number of [0, 1) for each token.
        topics: of the tokens, int32; changed in place.
        shared: counts of the rows, and of the topics.
        prior: of topics and words.

    Source: L. Yao, D. Mimno and A. McCallum, "Efficient methods for topic model inference on streaming
        document collections", KDD 2009, Sec. 3.4. Deviation: the topics of a word are in no order of counts.
    """
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


def fastest_sample() -> Sample:
    """The fastest that this installation has; both draw the same."""
    try:
        from hpcbal.paramserver.apps._gibbs import sample
    except ImportError:  # installed without a compiler, or built for another machine
        return sample_in_python

    def sample_in_c(
        rows: Int32Array,
        starts: IntArray,
        uniforms: NDArray[np.float64],
        topics: Int32Array,
        shared: Counts,
        prior: Prior,
    ) -> None:
        sample(
            rows,
            starts,
            uniforms,
            topics,
            shared.counts,
            shared.totals,
            shared.listed,
            shared.num_listed,
            shared.deltas,
            shared.total_deltas,
            prior.alpha,
            prior.beta,
            prior.beta_sum,
        )

    return sample_in_c

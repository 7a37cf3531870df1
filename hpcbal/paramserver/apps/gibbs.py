"""Sample topics as SparseLDA does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcbal.paramserver.api import IntArray
from hpcbal.paramserver.apps._gibbs import sample as _sample

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


def sample(
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
    _sample(
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

"""Topic models by collapsed Gibbs sampling: topics of tokens at the workers, counts at the servers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.paramserver.api.app import App, SampleSource
from hpcbal.paramserver.api.batch import Batch
from hpcbal.paramserver.api.columns import Array, Columns, IntArray, Ragged
from hpcbal.paramserver.api.update import Needs, Parameters, Table, Update, Updates
from hpcbal.paramserver.apps._gibbs import sample as _sample
from hpcbal.paramserver.apps.arguments import (
    check_above_0,
    check_at_least,
    count_of,
    first_samples,
    ragged_column,
)

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


_NAME = "LDA"
_MOST_CELLS = 2**20
"""Tokens times topics that the objective holds at a time."""


class LDA(App):
    """Latent Dirichlet allocation, sampled by SparseLDA.

    A sample is a document with the ragged column `words`: ids, one for each token. The dataset states
    `num_words`. A turn draws new topics for the tokens of its documents, one after another within a data
    block. Blocks do not see each other's draws of the same step, as if each had a worker of its own (AD-LDA).
    So results are the same to the last bit however blocks are spread.

    Args:
        source: the dataset.
        num_topics: >= 2.
        alpha: Dirichlet prior of a topic in a document, > 0; null: 50 / num_topics, at most 0.1.
        beta: Dirichlet prior of a word in a topic, > 0.

    Metrics: `loss` (minus the log-likelihood of words and topics, per token, in nats), `log_likelihood` (of
    all tokens), `perplexity` (of the training tokens, by the mean topics of documents and words of topics).

    Source: L. Yao, D. Mimno and A. McCallum, "Efficient methods for topic model inference on streaming
        document collections", KDD 2009; D. Newman et al., "Distributed algorithms for topic models", JMLR 10,
        2009 (AD-LDA).
    """

    def __init__(
        self, source: SampleSource, num_topics: int = 20, alpha: float | None = None, beta: float = 0.01
    ) -> None:
        super().__init__(source)
        check_at_least(_NAME, 2, num_topics=num_topics)
        first_samples(_NAME, source, ("words",), lists=("words",))
        self._num_topics, self._num_words = int(num_topics), count_of(_NAME, source, "num_words")
        alpha = min(0.1, 50.0 / num_topics) if alpha is None else alpha
        check_above_0(_NAME, alpha=alpha, beta=beta)
        self._prior = Prior(float(alpha), float(beta), beta * self._num_words)

    def tables(self) -> Sequence[Table]:
        return (
            Table("word_topics", self._num_words, self._num_topics, "int32", "sparse"),
            Table("topic_totals", 1, self._num_topics, "int64"),
        )

    def initial_state(self, columns: Columns, rng: np.random.Generator) -> Columns:
        """Random topics."""
        words = ragged_column(_NAME, columns, "words")
        topics = rng.integers(self._num_topics, size=len(words.values), dtype=np.int32)
        return {"topics": Ragged(topics, words.offsets)}

    def initial_updates(self, batch: Batch) -> Updates:
        """Counts of the random topics."""
        rows, places = self._rows(batch)
        topics = batch.ragged("topics").values
        counts = np.bincount(places * self._num_topics + topics, minlength=len(rows) * self._num_topics)
        totals = np.bincount(topics, minlength=self._num_topics)
        return {
            "word_topics": Update(counts.reshape(len(rows), self._num_topics).astype(np.int32), rows),
            "topic_totals": totals[np.newaxis],
        }

    def needs(self, batch: Batch) -> Needs:
        return {"word_topics": self._rows(batch)[0]}

    def compute(self, batch: Batch, parameters: Parameters) -> Updates:
        places = self._rows(batch)[1].astype(np.int32)
        topics = batch.ragged("topics")
        shared = Counts.of(parameters["word_topics"], parameters["topic_totals"])
        for part in batch.parts:
            offsets = topics.offsets[part.start : part.stop + 1]
            tokens = slice(int(offsets[0]), int(offsets[-1]))
            uniforms = part.rng.random(tokens.stop - tokens.start)
            sample(places[tokens], offsets - offsets[0], uniforms, topics.values[tokens], shared, self._prior)
        return {"word_topics": shared.deltas, "topic_totals": shared.total_deltas[np.newaxis]}

    def objective(self, batch: Batch, parameters: Parameters) -> Mapping[str, float]:
        places, topics = self._rows(batch)[1], batch.ragged("topics")
        totals = parameters["topic_totals"].reshape(-1) + self._prior.beta_sum
        of_words = (parameters["word_topics"] + self._prior.beta) / totals
        log_documents = log_words = 0.0
        for start, stop in self._pieces(topics.offsets):
            offsets = topics.offsets[start : stop + 1]
            tokens = slice(int(offsets[0]), int(offsets[-1]))
            counts = self._document_counts(topics.values[tokens], offsets - offsets[0])
            log_documents += self._log_of_documents(counts)
            of_documents = counts + self._prior.alpha
            of_documents /= of_documents.sum(axis=1, keepdims=True)
            spread = np.repeat(of_documents, np.diff(offsets), axis=0)
            log_words += float(np.log(np.einsum("tk,tk->t", spread, of_words[places[tokens]])).sum())
        return {"documents": log_documents, "words": log_words, "tokens": float(len(topics.values))}

    def parameter_objective(self, table: str, values: NDArray[Any]) -> Mapping[str, float]:
        if table == "word_topics":
            return {"word_topics": float(_log_rising(values[values > 0], self._prior.beta).sum())}
        return {
            "topics": -sum(math.lgamma(total + self._prior.beta_sum) for total in values.ravel().tolist())
        }

    def metrics(self, sums: Mapping[str, float]) -> Mapping[str, float]:
        constant = self._num_topics * math.lgamma(self._prior.beta_sum)
        log_likelihood = sums["documents"] + sums["word_topics"] + sums["topics"] + constant
        return {
            "loss": -log_likelihood / sums["tokens"],
            "log_likelihood": log_likelihood,
            "perplexity": math.exp(-sums["words"] / sums["tokens"]),
        }

    def _rows(self, batch: Batch) -> tuple[IntArray, IntArray]:
        """Ids of the batch's words, and the place of each token's word among them."""
        if "rows" not in batch.memo:
            batch.memo["rows"] = np.unique(batch.ragged("words").values, return_inverse=True)
        rows, places = batch.memo["rows"]
        return rows, places

    def _pieces(self, offsets: IntArray) -> Iterator[tuple[int, int]]:
        """Runs of documents with about `_MOST_CELLS` cells each."""
        most, start, last = max(1, _MOST_CELLS // self._num_topics), 0, len(offsets) - 1
        while start < last:
            stop = int(np.searchsorted(offsets, offsets[start] + most, side="right")) - 1
            stop = min(max(stop, start + 1), start + most, last)
            yield start, stop
            start = stop

    def _document_counts(self, topics: Array, offsets: IntArray) -> Array:
        """Tokens of each document and topic, float64, shape (num_documents, num_topics)."""
        num_documents = len(offsets) - 1
        owners = np.repeat(np.arange(num_documents), np.diff(offsets))
        cells = np.bincount(owners * self._num_topics + topics, minlength=num_documents * self._num_topics)
        return cells.reshape(num_documents, self._num_topics).astype(np.float64)

    def _log_of_documents(self, counts: Array) -> float:
        """Log-likelihood of the topics of documents."""
        alpha_sum = self._num_topics * self._prior.alpha
        own = _log_rising(counts[counts > 0].astype(np.int64), self._prior.alpha).sum()
        return float(own - _log_rising(counts.sum(axis=1).astype(np.int64), alpha_sum).sum())


def _log_rising(counts: IntArray, start: float) -> Array:
    """lgamma(count + start) - lgamma(start) of each count, by a table of sums of logarithms."""
    most = int(counts.max(initial=0))
    table = np.zeros(most + 1)
    np.cumsum(np.log(start + np.arange(most)), out=table[1:])
    return table[counts]

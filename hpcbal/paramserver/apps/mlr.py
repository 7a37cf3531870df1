"""Multinomial logistic regression by mini-batch stochastic gradient descent, for dense and sparse samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.paramserver.api.app import App, SampleSource
from hpcbal.paramserver.api.batch import Batch
from hpcbal.paramserver.api.columns import Array, Columns
from hpcbal.paramserver.api.update import Access, AppError, Needs, Parameters, Table, Update, Updates
from hpcbal.paramserver.apps.arguments import (
    check_above_0,
    check_at_least,
    check_choice,
    count_of,
    first_samples,
)
from hpcbal.paramserver.apps.sparse_rows import SparseRows

_NAME = "MLR"


class MLR(App):
    """Minimise mean(-log softmax(W^T x + b)[label]) + l2/2 |W|^2.

    The dataset has the column `labels` (integers), and either `features`, shape (n, num_features), or the
    ragged columns `indices` and `values` of sparse features. It states `num_features` and `num_classes`. In
    the sparse case, a turn pulls the rows of W that its samples name. The gradient of the regulariser is then
    spread over the samples that name a row; its mean over an epoch is the same.

    Args:
        source: the dataset.
        learning_rate: step size, > 0.
        decay: the step size of epoch e is learning_rate / (1 + decay * e); >= 0.
        l2: weight of the regulariser, >= 0; the intercepts b have none.
        dtype: of parameters: `float64` or `float32`.

    Metrics: `loss` (the minimised function), `accuracy` (share of samples whose label has the largest score).
    """

    def __init__(
        self,
        source: SampleSource,
        learning_rate: float = 0.5,
        decay: float = 0.0,
        l2: float = 0.0,
        dtype: str = "float64",
    ) -> None:
        super().__init__(source)
        check_above_0(_NAME, learning_rate=learning_rate)
        check_at_least(_NAME, 0, decay=decay, l2=l2)
        check_choice(_NAME, "dtype", dtype, ("float64", "float32"))
        self._num_features = count_of(_NAME, source, "num_features")
        self._num_classes = count_of(_NAME, source, "num_classes")
        columns = first_samples(
            _NAME,
            source,
            ("features", "labels"),
            ("indices", "values", "labels"),
            lists=("indices", "values"),
        )
        self._is_sparse = "indices" in columns
        self._learning_rate, self._decay, self._l2, self._dtype = learning_rate, decay, l2, dtype

    def tables(self) -> Sequence[Table]:
        access: Access = "sparse" if self._is_sparse else "dense"
        tables = [
            Table("weights", self._num_features, self._num_classes, self._dtype, access),
            Table("bias", 1, self._num_classes, self._dtype),
        ]
        if self._is_sparse and self._l2:
            tables.append(Table("frequency", self._num_features, 1, "int64", "sparse"))
        return tables

    def initial_state(self, columns: Columns, rng: np.random.Generator) -> Columns:
        """No state; labels are checked here, where each sample passes once."""
        labels = np.asarray(columns["labels"])
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise AppError(
                f"MLR: column 'labels' has type {labels.dtype} and shape {labels.shape}, expected one whole "
                "number for each sample"
            )
        wrong = labels[(labels < 0) | (labels >= self._num_classes)]
        if len(wrong):
            raise AppError(
                f"MLR: column 'labels' has {wrong[0]}, expected 0 to {self._num_classes - 1}; num_classes is "
                f"{self._num_classes}"
            )
        return {}

    def initial_updates(self, batch: Batch) -> Updates | None:
        """Count the samples that name each feature."""
        if not (self._is_sparse and self._l2):
            return None
        samples = self._sparse(batch)
        return {"frequency": Update(samples.counts()[:, np.newaxis], samples.rows)}

    def needs(self, batch: Batch) -> Needs:
        if not self._is_sparse:
            return {}
        rows = self._sparse(batch).rows
        return {"weights": rows, "frequency": rows} if self._l2 else {"weights": rows}

    def compute(self, batch: Batch, parameters: Parameters) -> Updates:
        rate = self._learning_rate / (1.0 + self._decay * batch.epoch)
        slopes = _softmax(self._scores(batch, parameters))
        slopes[np.arange(batch.num_samples), batch.array("labels")] -= 1.0
        slopes *= -rate / batch.step_samples
        weights = parameters["weights"]
        if self._is_sparse:
            deltas = self._sparse(batch).transposed_times(slopes)
        else:
            deltas = batch.array("features").T @ slopes
        if self._l2:
            deltas -= (rate * self._l2 * self._shares(batch, parameters)) * weights
        return {"weights": deltas, "bias": slopes.sum(axis=0, keepdims=True)}

    def _shares(self, batch: Batch, parameters: Parameters) -> Array | float:
        """The part of the regulariser that falls to this batch; its mean over steps is 1, for each row."""
        if not self._is_sparse:
            return batch.num_samples / batch.step_samples
        counts = self._sparse(batch).counts()[:, np.newaxis]
        return counts / parameters["frequency"] * (self.source.num_samples / batch.step_samples)

    def objective(self, batch: Batch, parameters: Parameters) -> Mapping[str, float]:
        scores = self._scores(batch, parameters)
        labels = batch.array("labels")
        own = scores[np.arange(batch.num_samples), labels]
        top = scores.max(axis=1, keepdims=True)
        log_sum = np.log(np.exp(scores - top).sum(axis=1)) + top[:, 0]
        return {
            "loss": float((log_sum - own).sum(dtype=np.float64)),
            "correct": float((scores.argmax(axis=1) == labels).sum()),
            "samples": float(batch.num_samples),
        }

    def parameter_objective(self, table: str, values: NDArray[Any]) -> Mapping[str, float]:
        if table != "weights":
            return {}
        return {"squares": float(np.square(values, dtype=np.float64).sum())}

    def metrics(self, sums: Mapping[str, float]) -> Mapping[str, float]:
        loss = sums["loss"] / sums["samples"] + 0.5 * self._l2 * sums["squares"]
        return {"loss": loss, "accuracy": sums["correct"] / sums["samples"]}

    def _scores(self, batch: Batch, parameters: Parameters) -> Array:
        """Shape (num_samples, num_classes)."""
        weights, bias = parameters["weights"], parameters["bias"]
        if self._is_sparse:
            return self._sparse(batch).times(weights) + bias
        scores: Array = batch.array("features") @ weights
        scores += bias
        return scores

    def _sparse(self, batch: Batch) -> SparseRows:
        if "rows" not in batch.memo:
            batch.memo["rows"] = SparseRows.of(batch.ragged("indices"), batch.ragged("values"))
        rows: SparseRows = batch.memo["rows"]
        return rows


def _softmax(scores: Array) -> Array:
    """Probabilities of the classes, in place."""
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    return scores

"""Lasso by parallel coordinate descent: weights of features at the workers, the residual at the servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import InputError
from hpcbal.paramserver.apps.arguments import check_at_least, check_choice, first_samples
from hpcbal.paramserver.apps.sparse_rows import SparseRows
from hpcbal.paramserver.contract import (
    Access,
    App,
    Array,
    Batch,
    Columns,
    IntArray,
    Needs,
    Parameters,
    Ragged,
    SampleSource,
    Table,
    Updates,
)

_NAME = "Lasso"
_MOST_TRIED = 512
"""Features at most whose correlation is measured; beyond, it is extrapolated."""

_NUM_TRIALS = 3
_NUM_POWERS = 50


class Lasso(App):
    """Minimise |y - X w|^2 / (2 num_observations) + l1 |w|_1.

    A sample is a *feature*, a column of X: either `column`, shape (num_features, num_observations), or the
    ragged columns `rows` and `values`. The dataset has an attribute `target`: y, shape (num_observations,).
    There is no intercept, so centre y and the columns. A weight is the state of its feature. The servers hold
    the residual y - X w; a turn pulls it, solves for each of its weights alone, and pushes what the residual
    changes by.

    All features of a step change at once, so correlated ones would go too far together. Their steps are
    divided by the largest eigenvalue of the correlations of as many features drawn at random. With
    `mini_batch: 1`, this is plain coordinate descent. With `consistency: async`, turns of several workers
    overlap: choose `mini_batch` so small that all turns together change few correlated features.

    Args:
        source: the dataset.
        l1: weight of the regulariser, >= 0.
        access: `dense`: a turn pulls all residuals; `sparse`: those of the observations that its features
            have, which pays if these are few of many.

    Metrics: `loss` (the minimised function), `num_nonzero` (weights other than 0).

    Source: J. K. Bradley et al., "Parallel coordinate descent for L1-regularized loss minimization", ICML
        2011 (Shotgun). Deviation: steps are divided, as in P. Richtarik and M. Takac, "Parallel coordinate
        descent methods for big data optimization", Math. Programming 156, 2016; Shotgun limits their number.
    """

    def __init__(self, source: SampleSource, l1: float = 0.1, access: Access = "dense") -> None:
        super().__init__(source)
        check_at_least(_NAME, 0, l1=l1)
        check_choice(_NAME, "access", access, ("dense", "sparse"))
        target = np.asarray(getattr(source, "target", None), np.float64)
        if target.ndim != 1 or not len(target):
            raise InputError(
                "data: Lasso needs a dataset with an attribute `target`, one number for each observation; "
                "samples are features (columns of X)"
            )
        self._target, self._l1 = target, float(l1)
        is_sparse = "rows" in first_samples(_NAME, source, ("column",), ("rows", "values"))
        if access == "sparse" and not is_sparse:
            raise InputError("args.access of Lasso: got sparse, but the features of this dataset are dense")
        self._access = access
        self._divisor_by_count: dict[int, float] = {1: 1.0}

    def tables(self) -> Sequence[Table]:
        return (Table("residual", len(self._target), 1, access=self._access),)

    def initial(self, table: str, rows: IntArray, rng: np.random.Generator) -> NDArray[Any]:
        """The target: all weights are 0."""
        return self._target[rows, np.newaxis]

    def initial_state(self, columns: Columns, rng: np.random.Generator) -> Columns:
        """Weights, and mean squares of the features."""
        some = next(iter(columns.values()))
        return {"weight": np.zeros(len(some)), "mean_square": self._mean_squares(columns)}

    def needs(self, batch: Batch) -> Needs:
        if self._access == "dense":
            return {}
        columns = self._features(batch)
        assert isinstance(columns, SparseRows)
        return {"residual": columns.rows}

    def compute(self, batch: Batch, parameters: Parameters) -> Updates:
        residual = parameters["residual"]
        weights, curvature = batch.array("weight"), batch.array("mean_square")
        columns = self._features(batch)
        slopes = _times(columns, residual)[:, 0] / len(self._target)
        curvature = np.where(curvature > 0.0, curvature, 1.0) * self._divisor(batch.step_samples)
        goal = weights + slopes / curvature
        new = np.sign(goal) * np.maximum(np.abs(goal) - self._l1 / curvature, 0.0)
        change = (weights - new)[:, np.newaxis]
        weights[:] = new
        return {"residual": _transposed_times(columns, change)}

    def objective(self, batch: Batch, parameters: Parameters) -> Mapping[str, float]:
        weights = batch.array("weight")
        return {"absolute": float(np.abs(weights).sum()), "nonzero": float(np.count_nonzero(weights))}

    def parameter_objective(self, table: str, values: NDArray[Any]) -> Mapping[str, float]:
        return {"squares": float(np.square(values).sum())}

    def metrics(self, sums: Mapping[str, float]) -> Mapping[str, float]:
        loss = sums["squares"] / (2 * len(self._target)) + self._l1 * sums["absolute"]
        return {"loss": loss, "num_nonzero": sums["nonzero"]}

    def _features(self, batch: Batch) -> SparseRows | Array:
        """The batch's features, over the residuals that it pulls."""
        if "features" not in batch.memo:
            batch.memo["features"] = self._columns_of(batch.columns)
        features: SparseRows | Array = batch.memo["features"]
        return features

    def _columns_of(self, columns: Columns) -> SparseRows | Array:
        if "rows" not in columns:
            dense = columns["column"]
            assert not isinstance(dense, Ragged)
            return dense
        rows, values = columns["rows"], columns["values"]
        assert isinstance(rows, Ragged)
        assert isinstance(values, Ragged)
        if self._access == "sparse":
            return SparseRows.of(rows, values)
        return SparseRows.over_all(rows, values, len(self._target))

    def _mean_squares(self, columns: Columns) -> Array:
        values = self._columns_of(columns)
        if isinstance(values, SparseRows):
            squares = SparseRows(values.rows, values.places, values.offsets, np.square(values.values))
            return squares.times(np.ones((len(values.rows), 1)))[:, 0] / len(self._target)
        means: Array = np.einsum("ij,ij->i", values, values) / len(self._target)
        return means

    def _divisor(self, count: int) -> float:
        """The largest eigenvalue of the correlations of `count` features; the same on every rank."""
        if count not in self._divisor_by_count:
            tried = min(count, _MOST_TRIED)
            largest = max(self._largest_eigenvalue(tried, trial) for trial in range(_NUM_TRIALS))
            self._divisor_by_count[count] = 1.0 + (largest - 1.0) * (count - 1) / max(1, tried - 1)
        return self._divisor_by_count[count]

    def _largest_eigenvalue(self, count: int, trial: int) -> float:
        rng = np.random.default_rng(trial)
        features = np.sort(rng.choice(self.source.num_samples, count, replace=False))
        read = self.source.read(features)
        columns, squares = self._columns_of(read), self._mean_squares(read) * len(self._target)
        scale = np.sqrt(np.where(squares > 0.0, squares, 1.0))[:, np.newaxis]
        vector, length = rng.uniform(0.5, 1.0, (count, 1)), 1.0
        for _ in range(_NUM_POWERS):
            vector = _times(columns, _transposed_times(columns, vector / scale)) / scale
            length = float(np.linalg.norm(vector))
            if length == 0.0:
                return 1.0
            vector /= length
        return max(1.0, length)


def _times(columns: SparseRows | Array, observations: Array) -> Array:
    """X^T times one number per (pulled) observation."""
    return columns.times(observations) if isinstance(columns, SparseRows) else columns @ observations


def _transposed_times(columns: SparseRows | Array, features: Array) -> Array:
    """X times one number per feature."""
    if isinstance(columns, SparseRows):
        return columns.transposed_times(features)
    return columns.T @ features

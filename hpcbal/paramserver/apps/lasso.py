"""Lasso by coordinate descent in parts: weights of features at the workers, the residual at the servers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import InputError
from hpcbal.paramserver.api.app import App, SampleSource
from hpcbal.paramserver.api.batch import Batch
from hpcbal.paramserver.api.columns import Array, Columns, IntArray
from hpcbal.paramserver.api.update import Access, Needs, Parameters, Table, Updates
from hpcbal.paramserver.apps.arguments import (
    check_at_least,
    check_choice,
    dense_column,
    first_samples,
    ragged_column,
)
from hpcbal.paramserver.apps.descent import Penalty, Terms, descend
from hpcbal.paramserver.apps.sparse_rows import SparseRows, sum_by_sample

Read = Callable[[IntArray], SparseRows | Array]
"""Features by their ids, ascending: sparse ones, or dense ones, shape (num_features, num_rows)."""

_MOST_TRIED = 256
"""Features at most whose correlation is measured; beyond, it is extrapolated."""

_NUM_TRIALS = 2
_MOST_CELLS = 2**20
"""Cells of a dense matrix at a time: 8 MiB."""

_RIDGE = 1e-6
"""Added to correlations of a feature with itself, for features that are equal."""


class Damping:
    """Factors by which the sum of the groups' own curvatures is at least that of all features together.

    For groups with the shares p_k of the features, |sum v_k|^2 <= sum |v_k|^2 / p_k, whatever the data is:
    the factor 1 / p_k is always safe, for unlike groups too. The largest eigenvalue of the features'
    correlations relative to those within the groups is the least factor for all of them. It is estimated from
    features drawn at random, and taken where it is less.

    Args:
        read: the features.
        num_features: how many there are, >= 1.
        is_estimated: whether to estimate; else factors are the safe ones.

    Source: C. Ma et al., "Adding vs. averaging in distributed primal-dual optimization", ICML 2015 (sigma').
        Deviation: unlike groups, and the estimate.
    """

    def __init__(self, read: Read, num_features: int, is_estimated: bool = True) -> None:
        self._read, self._num_features, self._is_estimated = read, num_features, is_estimated
        self._estimates: dict[tuple[int, int], float] = {}

    def factor(self, num_own: int, num_changed: int) -> float:
        """The factor of a group; the same on every rank.

        Args:
            num_own: features of the group, >= 1.
            num_changed: features that change at once, of all groups; >= `num_own`.

        Returns: 1 for a single group, else above.
        """
        safe = num_changed / num_own
        if safe <= 1.0 or not self._is_estimated:
            return max(1.0, safe)
        key = _rounded_up(num_changed), max(2, _rounded_up(round(safe)))
        if key not in self._estimates:
            self._estimates[key] = self._estimate(*key)
        return min(safe, self._estimates[key])

    def _estimate(self, num_changed: int, num_groups: int) -> float:
        tried = min(num_changed, _MOST_TRIED, self._num_features)
        largest = 1.0
        for trial in range(_NUM_TRIALS):
            drawn = np.random.default_rng(trial).choice(self._num_features, tried, replace=False)
            # Neighbours are in the same group, as they are in the same data block.
            features = self._read(np.sort(drawn))
            largest = max(largest, largest_ratio(correlations(features), min(num_groups, tried)))
        return 1.0 + (largest - 1.0) * (num_changed - 1) / max(1, tried - 1)


def correlations(features: SparseRows | Array) -> Array:
    """Products of features of length 1, shape (num_features, num_features); features that are 0 have none."""
    gram = _gram_of_sparse(features) if isinstance(features, SparseRows) else _gram_of_dense(features)
    squares = np.diagonal(gram)
    scale = 1.0 / np.sqrt(np.where(squares > 0.0, squares, 1.0))
    scaled: Array = gram * scale * scale[:, np.newaxis]
    return scaled


def largest_ratio(correlation: Array, num_groups: int) -> float:
    """The largest of x^T C x over the same within groups of neighbours.

    Args:
        correlation: C, shape (num_features, num_features).
        num_groups: of about the same size, 1 to `num_features`.
    """
    count = len(correlation)
    ends = np.arange(1, num_groups + 1) * count // num_groups
    group = np.searchsorted(ends, np.arange(count), side="right")
    within = np.where(group == group[:, np.newaxis], correlation, 0.0) + _RIDGE * np.eye(count)
    root = np.linalg.cholesky(within)
    whitened = np.linalg.solve(root, np.linalg.solve(root, correlation).T)
    return float(np.linalg.eigvalsh(whitened)[-1])


def _gram_of_dense(features: Array) -> Array:
    features = features.astype(np.float64, copy=False)
    return features @ features.T


def _gram_of_sparse(features: SparseRows) -> Array:
    """Products of all pairs of features, a run of rows at a time."""
    count, num_rows = len(features.offsets) - 1, len(features.rows)
    owners = np.repeat(np.arange(count), np.diff(features.offsets))
    gram, width = np.zeros((count, count)), max(1, _MOST_CELLS // count)
    for start in range(0, num_rows, width):
        size = min(width, num_rows - start)
        own = (features.places >= start) & (features.places < start + size)
        cells = owners[own] * size + (features.places[own] - start)
        dense = np.bincount(cells, features.values[own], count * size).reshape(count, size)
        gram += dense @ dense.T
    return gram


def _rounded_up(count: int) -> int:
    """To four binary digits, so that few estimates serve groups of nearly the same size."""
    unit = 1 << max(0, count.bit_length() - 4)
    return -(-count // unit) * unit


_NAME = "Lasso"


class Lasso(App):
    """Minimise |y - X w|^2 / (2 num_observations) + l1 |w|_1.

    A sample is a *feature*, a column of X: either `column`, shape (num_features, num_observations), or the
    ragged columns `rows` and `values`. The dataset has an attribute `target`: y, shape (num_observations,).
    There is no intercept, so centre y and the columns. A weight is the state of its feature. The servers hold
    the residual y - X w; a turn pulls it, improves its weights, and pushes what the residual changes by.

    The features of a data block improve one after another, on the residual as they have changed it: the
    coordinate descent of other libraries. All blocks of a step change at once, so correlated features of
    unlike blocks would go too far together. The quadratic term of each block's problem is therefore
    multiplied by a factor: at most the features of the step over those of the block, which is always safe,
    and less where features are hardly correlated. With `blocks: {data: 1}` it is 1, and large mini-batches
    are best. With more blocks, small ones need fewer epochs. A worker needs a block.

    Only turns of the same step are known of. With `stale` or `async`, turns of several steps or workers
    overlap, and correlated features may make the loss grow. Set `overlap` to k + 1 with `stale: k`, and to
    the number of workers with `async`.

    Args:
        source: the dataset.
        l1: weight of the regulariser, >= 0.
        passes: over the features of a block in a turn, >= 1: the first over all, others over those with a
            weight, which are few.
        overlap: how many times the features of a step change at once, >= 1.
        damping: `estimated`: the factors follow from features drawn at random; `safe`: they are the largest
            that may be needed, for data where a few features are much more correlated than most.
        access: `dense`: a turn pulls all residuals; `sparse`: those of the observations that its features
            have, which pays if these are few of many.

    Metrics: `loss` (the minimised function), `num_nonzero` (weights other than 0).

    Source: V. Smith et al., "CoCoA: A general framework for communication-efficient distributed
        optimization", JMLR 18, 2018, for the L1 norm, with added updates (gamma = 1). Deviations: a turn
        takes a mini-batch of a block's features, and `damping.Damping` estimates the factor. With one feature
        of each block in a step it is J. K. Bradley et al., "Parallel coordinate descent for L1-regularized
        loss minimization", ICML 2011 (Shotgun), with damped steps.
    """

    def __init__(
        self,
        source: SampleSource,
        l1: float = 0.1,
        passes: int = 10,
        overlap: float = 1,
        damping: str = "estimated",
        access: Access = "dense",
    ) -> None:
        super().__init__(source)
        check_at_least(_NAME, 0, l1=l1)
        check_at_least(_NAME, 1, passes=passes, overlap=overlap)
        check_choice(_NAME, "damping", damping, ("estimated", "safe"))
        check_choice(_NAME, "access", access, ("dense", "sparse"))
        target = np.asarray(getattr(source, "target", None), np.float64)
        if target.ndim != 1 or not len(target):
            raise InputError(
                "data: Lasso needs a dataset with an attribute `target`, one number for each observation; "
                "samples are features (columns of X)"
            )
        self._target, self._l1 = target, float(l1)
        is_sparse = "rows" in first_samples(
            _NAME, source, ("column",), ("rows", "values"), lists=("rows", "values")
        )
        if access == "sparse" and not is_sparse:
            raise InputError("args.access of Lasso: got sparse, but the features of this dataset are dense")
        self._access = access
        self._passes, self._overlap = int(passes), float(overlap)
        self._damping = Damping(self._read, source.num_samples, damping == "estimated")

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
        residual = np.ascontiguousarray(parameters["residual"][:, 0], np.float64)
        weights, mean_squares = batch.array("weight"), batch.array("mean_square")
        expected, change = residual.copy(), np.zeros_like(residual)
        num_changed, terms = math.ceil(batch.step_samples * self._overlap), _terms(self._features(batch))
        for part in batch.parts:
            own = slice(part.start, part.stop)
            damping = self._damping.factor(part.num_samples, num_changed)
            descend(
                terms.of(part.start, part.stop),
                mean_squares[own],
                weights[own],
                residual,
                expected,
                change,
                Penalty(self._l1, damping, len(self._target), self._passes),
            )
        return {"residual": change[:, np.newaxis]}

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
            return dense_column(_NAME, columns, "column")
        rows, values = (ragged_column(_NAME, columns, name) for name in ("rows", "values"))
        if self._access == "sparse":
            return SparseRows.of(rows, values)
        return SparseRows.over_all(rows, values, len(self._target))

    def _mean_squares(self, columns: Columns) -> Array:
        if "values" in columns:
            values = ragged_column(_NAME, columns, "values")
            squares = sum_by_sample(np.square(values.values), values.offsets)
        else:
            dense = dense_column(_NAME, columns, "column")
            squares = np.einsum("ij,ij->i", dense, dense)
        means: Array = squares / len(self._target)
        return means

    def _read(self, features: IntArray) -> SparseRows | Array:
        """Features by their ids; sparse ones over the rows that they have."""
        columns = self.source.read(features)
        if "rows" not in columns:
            return self._columns_of(columns)
        return SparseRows.of(*(ragged_column(_NAME, columns, name) for name in ("rows", "values")))


def _terms(features: SparseRows | Array) -> Terms:
    if isinstance(features, SparseRows):
        return Terms.of_sparse(features.places, features.offsets, features.values)
    return Terms.of_dense(features)

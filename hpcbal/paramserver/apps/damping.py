"""How far groups of features may change at once: the factor of the quadratic term of their subproblems."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hpcbal.paramserver.api import Array, IntArray
from hpcbal.paramserver.apps.sparse_rows import SparseRows

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

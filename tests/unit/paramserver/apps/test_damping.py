"""Groups of features that change at once are damped enough, and little where they hardly share anything."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.paramserver.apps.lasso import Damping, correlations, largest_ratio
from hpcbal.paramserver.apps.sparse_rows import SparseRows


def damping_of(features: Any) -> Damping:
    return Damping(lambda ids: features[ids], len(features))


def test_a_group_alone_is_not_damped() -> None:
    assert damping_of(np.ones((4, 3))).factor(4, 4) == 1.0


def test_features_that_share_no_row_are_not_damped() -> None:
    assert damping_of(np.eye(40)).factor(10, 40) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(("num_own", "expected"), [(10, 4.0), (5, 8.0), (32, 1.25)])
def test_equal_features_are_damped_by_their_number_over_that_of_the_group(
    num_own: int, expected: float
) -> None:
    assert damping_of(np.ones((40, 6))).factor(num_own, 40) == pytest.approx(expected)


@given(st.lists(st.integers(1, 4), min_size=2, max_size=5), st.integers(0, 2**32))
def test_shares_of_the_features_are_safe_for_unlike_groups(sizes: list[int], seed: int) -> None:
    """Also for the worst weights: the inverse of the groups' factors is at least the whole."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(sum(sizes), 3))
    gram, within = features @ features.T, np.zeros((sum(sizes),) * 2)
    ends = np.cumsum(sizes)
    for end, size in zip(ends.tolist(), sizes, strict=True):
        own = slice(end - size, end)
        within[own, own] = sum(sizes) / size * gram[own, own]
    assert np.linalg.eigvalsh(within - gram)[0] >= -1e-9 * np.trace(within)


@pytest.mark.parametrize("num_groups", [2, 3, 12])
def test_the_ratio_is_the_generalised_eigenvalue_of_scipy(num_groups: int) -> None:
    correlation = correlations(np.random.default_rng(0).normal(size=(12, 40)))
    blocks = [
        correlation[own[0] : own[-1] + 1, own[0] : own[-1] + 1]
        for own in np.split(np.arange(12), np.arange(1, num_groups) * 12 // num_groups)
    ]
    peer = scipy.linalg.eigh(correlation, scipy.linalg.block_diag(*blocks), eigvals_only=True)[-1]
    assert largest_ratio(correlation, num_groups) == pytest.approx(peer, rel=1e-4)


def test_sparse_features_have_the_correlations_of_dense_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    dense = rng.normal(size=(9, 50)) * (rng.random((9, 50)) < 0.3)
    dense[4] = 0.0
    rows = [np.flatnonzero(row) for row in dense]
    offsets = np.concatenate([[0], np.cumsum([len(own) for own in rows])])
    sparse = SparseRows(np.arange(50), np.concatenate(rows), offsets, dense[dense != 0.0])
    monkeypatch.setattr("hpcbal.paramserver.apps.lasso._MOST_CELLS", 100)  # several runs of rows
    assert correlations(sparse) == pytest.approx(correlations(dense), abs=1e-12)
    assert np.diagonal(correlations(dense)).tolist() == pytest.approx([1.0] * 4 + [0.0] + [1.0] * 4)


def test_more_features_than_are_tried_are_damped_more() -> None:
    features = np.random.default_rng(0).normal(size=(2000, 400))
    factors = [damping_of(features).factor(own, 8 * own) for own in (8, 32, 60, 250)]
    assert factors == sorted(factors)
    assert 1.0 < factors[0] < 3.0
    assert factors[-1] <= 8.0

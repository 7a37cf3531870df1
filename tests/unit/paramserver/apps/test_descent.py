"""Coordinate descent over some features minimises what it says, in C and with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from python_loops import descend_in_python
from sklearn import linear_model

from hpcbal.paramserver.apps.descent import Penalty, Terms, descend

NUM_ROWS = 30


def problem(is_sparse: bool) -> tuple[Any, Terms]:
    """Features, shape (num_rows, num_features), dense or with few rows."""
    rng = np.random.default_rng(1)
    features = rng.normal(size=(NUM_ROWS, 8)) * (rng.random((NUM_ROWS, 8)) < (0.3 if is_sparse else 1.0))
    features[:, 3] = 0.0
    features[:, 5] = features[:, 4]
    if not is_sparse:
        return features, Terms.of_dense(features.T)
    rows = [np.flatnonzero(column) for column in features.T]
    starts = np.concatenate([[0], np.cumsum([len(own) for own in rows])])
    values = np.concatenate([column[own] for column, own in zip(features.T, rows, strict=True)])
    return features, Terms.of_sparse(np.concatenate(rows).astype(np.int32), starts, values)


def descended(by: Any, features: Any, terms: Terms, damping: float, passes: int) -> tuple[Any, Any, Any]:
    """Weights before and after, and the change of the residual."""
    rng = np.random.default_rng(2)
    residual, before = rng.normal(size=NUM_ROWS), rng.normal(size=8) * (np.arange(8) % 2)
    weights, expected, change = before.copy(), residual.copy(), np.zeros(NUM_ROWS)
    mean_squares = np.square(features).mean(axis=0)
    penalty = Penalty(0.05, damping, NUM_ROWS, passes)
    by(terms, mean_squares, weights, residual, expected, change, penalty)
    assert (expected == residual).all()
    return before, weights, change


@pytest.mark.parametrize("by", [descend_in_python, descend])
@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("damping", [1.0, 3.5])
def test_many_passes_find_the_optimum_of_scikit_learn(by: Any, is_sparse: bool, damping: float) -> None:
    """With damping s, the problem is a Lasso of sqrt(s) A against r / sqrt(s) + sqrt(s) A weights."""
    features, terms = problem(is_sparse)
    before, weights, change = descended(by, features, terms, damping, 500)
    assert change == pytest.approx(features @ (before - weights), abs=1e-12)
    residual = np.random.default_rng(2).normal(size=NUM_ROWS)
    root = damping**0.5
    goal = residual / root + root * features @ before
    peer = linear_model.Lasso(alpha=0.05, fit_intercept=False, tol=1e-14, max_iter=10**5)
    peer.fit(root * features, goal)

    def loss(some: Any) -> Any:
        return np.square(goal - root * features @ some).mean() / 2 + 0.05 * np.abs(some).sum()

    # The first pass alone may drop a weight that would come back; it does not here.
    assert loss(weights) == pytest.approx(loss(peer.coef_), abs=1e-10)


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("passes", [1, 2, 7])
def test_c_gives_what_numpy_gives(is_sparse: bool, passes: int) -> None:
    features, terms = problem(is_sparse)
    _, wanted, wanted_change = descended(descend_in_python, features, terms, 2.0, passes)
    _, got, change = descended(descend, features, terms, 2.0, passes)
    assert got == pytest.approx(wanted, rel=1e-12, abs=1e-14)
    assert change == pytest.approx(wanted_change, rel=1e-12, abs=1e-13)

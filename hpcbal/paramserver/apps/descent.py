"""Coordinate descent for the Lasso over some features, and over non-negative factors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.paramserver.api.columns import IntArray
from hpcbal.paramserver.apps._descent import descend as _descend
from hpcbal.paramserver.apps._descent import improve_factors

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """Features as lists of terms, one of each row that they have. All arrays are C-contiguous.

    Attributes:
        places: the row of each term, int64, shape (num_terms,); None: each feature has a term for every row,
            in order.
        starts: feature j has the terms starts[j] to starts[j + 1] - 1, int64, shape (num_features + 1,).
        values: float64, shape (num_terms,).
    """

    places: IntArray | None
    starts: IntArray
    values: Floats

    @classmethod
    def of_dense(cls, features: NDArray[Any]) -> Terms:
        """Features side by side, shape (num_features, num_rows)."""
        count, num_rows = features.shape
        values: Floats = np.ascontiguousarray(features, np.float64).reshape(-1)
        return cls(None, np.arange(count + 1) * num_rows, values)

    @classmethod
    def of_sparse(cls, places: NDArray[Any], starts: IntArray, values: NDArray[Any]) -> Terms:
        """Features with few rows; of types that may have to be converted."""
        return cls(
            np.ascontiguousarray(places, np.int64),
            np.ascontiguousarray(starts, np.int64),
            np.ascontiguousarray(values, np.float64),
        )

    def of(self, start: int, stop: int) -> Terms:
        """The features start..stop-1; a view."""
        return Terms(self.places, self.starts[start : stop + 1], self.values)


@dataclass(frozen=True, slots=True)
class Penalty:
    """The part of the objective that does not depend on features.

    Attributes:
        l1: weight of the regulariser, >= 0.
        damping: factor of the quadratic term (sigma' in the papers), > 0.
        num_observations: by which squares are divided, > 0.
        passes: over the features, >= 1: the first over all, others over those with a weight.
    """

    l1: float
    damping: float
    num_observations: int
    passes: int


def descend(
    terms: Terms,
    mean_squares: Floats,
    weights: Floats,
    residual: Floats,
    expected: Floats,
    change: Floats,
    penalty: Penalty,
) -> None:
    """Improve the weights of some features, one after another.

    With d the change of the weights, A the features, r the residual, n observations and damping s, this
    reduces

        -r . A d / n + s |A d|^2 / (2 n) + l1 |weights + d|_1

    as far as some passes of exact minimisation over one weight after the other do. With s = 1, it is the
    Lasso itself over these features, the others being fixed.

    Args:
        terms: the features.
        mean_squares: of each feature: its squares over `num_observations`, shape (num_features,).
        weights: shape (num_features,); changed in place.
        residual: shape (num_rows,).
        expected: equal to `residual`; changed, and changed back, so that many calls need one copy only.
        change: of the residual, shape (num_rows,); what these features change is added.
        penalty: see there.

    Source: V. Smith et al., "CoCoA: A general framework for communication-efficient distributed
        optimization", JMLR 18, 2018: the subproblem of one machine, for the L1 norm.
    """
    _descend(
        terms.places,
        terms.starts,
        terms.values,
        mean_squares,
        weights,
        residual,
        expected,
        change,
        penalty.l1,
        penalty.damping,
        penalty.num_observations,
        penalty.passes,
    )


def improve(
    factors: NDArray[Any], products: NDArray[Any], gram: NDArray[Any], penalty: float, sweeps: int
) -> None:
    """Coordinate descent over each column of factors, in place.

    Args:
        factors: shape (num_rows, rank), >= 0.
        products: of the data and the other factors, shape (num_rows, rank).
        gram: of the other factors, symmetric, shape (rank, rank).
        penalty: added to the diagonal of `gram`.
        sweeps: >= 1.
    """
    own = np.ascontiguousarray(factors, np.float64)
    given = np.ascontiguousarray(products, np.float64)
    improve_factors(own, given, np.ascontiguousarray(gram, np.float64), penalty, own.shape[1], sweeps)
    if own is not factors:
        factors[:] = own

"""Coordinate descent for the Lasso and for non-negative factors (C, see _descent.c)."""

import numpy as np
from numpy.typing import NDArray

def descend(
    places: NDArray[np.int64] | None,
    starts: NDArray[np.int64],
    values: NDArray[np.float64],
    mean_squares: NDArray[np.float64],
    weights: NDArray[np.float64],
    residual: NDArray[np.float64],
    expected: NDArray[np.float64],
    change: NDArray[np.float64],
    l1: float,
    damping: float,
    num_observations: float,
    passes: int,
    /,
) -> None:
    """Improve the weights of some features, one after another; see `descent.descend`.

    Args:
        places: the row of each term, shape (num_terms,); None: each feature has a term for every row.
        starts: feature j has the terms starts[j] to starts[j + 1] - 1, shape (num_features + 1,).
        values: of the terms, shape (num_terms,).
        mean_squares: of the features, shape (num_features,).
        weights: shape (num_features,). Updated.
        residual: shape (num_rows,).
        expected: equal to `residual`. Changed, and changed back.
        change: of the residual, shape (num_rows,). Added to.
        l1, damping, num_observations, passes: see `descent.Penalty`.

    Raises:
        ValueError: the arrays do not fit together.
        BufferError: an array is not C-contiguous, or is read-only.
    """

def improve_factors(
    factors: NDArray[np.float64],
    products: NDArray[np.float64],
    gram: NDArray[np.float64],
    penalty: float,
    rank: int,
    sweeps: int,
    /,
) -> None:
    """Improve rows of non-negative factors, one factor after another; see `descent.improve`.

    Args:
        factors: shape (num_rows, rank). Updated.
        products: shape (num_rows, rank).
        gram: symmetric, shape (rank, rank).
        penalty, sweeps: see there.
        rank: number of factors, 1 to 2**20 - 1.

    Raises:
        ValueError: the arrays do not fit together.
        BufferError: an array is not C-contiguous, or `factors` is read-only.
    """

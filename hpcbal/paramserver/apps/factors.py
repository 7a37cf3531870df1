"""Coordinate descent over non-negative factors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.paramserver.apps._descent import improve_factors

Array = NDArray[Any]


def improve(factors: Array, products: Array, gram: Array, penalty: float, sweeps: int) -> None:
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

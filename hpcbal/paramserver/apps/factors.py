"""Coordinate descent over non-negative factors: in C where it was built, else with NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_TINY = 1e-12

Improve = Callable[[Array, Array, Array, float, int], None]
"""Coordinate descent over the factors of each row, in place.

    Args: see `improve_in_python`."""


def improve_in_python(factors: Array, products: Array, gram: Array, penalty: float, sweeps: int) -> None:
    """Coordinate descent over each column of factors, in place.

    Args:
        factors: shape (num_rows, rank), >= 0.
        products: of the data and the other factors, shape (num_rows, rank).
        gram: of the other factors, symmetric, shape (rank, rank).
        penalty: added to the diagonal of `gram`.
        sweeps: >= 1.
    """
    for k in list(range(factors.shape[1])) * sweeps:
        curvature = gram[k, k] + penalty
        if curvature > _TINY:
            slope = products[:, k] - factors @ gram[:, k] - penalty * factors[:, k]
            factors[:, k] = np.maximum(factors[:, k] + slope / curvature, 0.0)


def fastest_improve() -> Improve:
    """The fastest that this installation has; both give the same but for rounding."""
    try:
        from hpcbal.paramserver.apps._descent import improve_factors
    except ImportError:  # installed without a compiler, or built for another machine
        return improve_in_python

    def improve_in_c(factors: Array, products: Array, gram: Array, penalty: float, sweeps: int) -> None:
        own = np.ascontiguousarray(factors, np.float64)
        given = np.ascontiguousarray(products, np.float64)
        improve_factors(own, given, np.ascontiguousarray(gram, np.float64), penalty, own.shape[1], sweeps)
        if own is not factors:
            factors[:] = own

    return improve_in_c

"""Coordinate descent over non-negative factors, in C and with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from python_loops import improve_in_python
from scipy.optimize import nnls

from hpcbal.paramserver.apps.descent import improve


def problem(rank: int, num_rows: int = 9) -> tuple[Any, Any, Any]:
    """Factors of rows, and the other factors and the data."""
    rng = np.random.default_rng(rank)
    other = rng.random((20, rank))
    return rng.random((num_rows, rank)), other, rng.random((num_rows, 20))


@pytest.mark.parametrize("by", [improve_in_python, improve])
@pytest.mark.parametrize("penalty", [0.0, 0.5])
def test_many_sweeps_find_the_non_negative_least_squares_of_scipy(by: Any, penalty: float) -> None:
    factors, other, data = problem(5)
    by(factors, data @ other, other.T @ other, penalty, 3000)
    for row, own in zip(factors, data, strict=True):
        system = np.vstack([other, penalty**0.5 * np.eye(5)])
        peer, _ = nnls(system, np.concatenate([own, np.zeros(5)]))
        assert row == pytest.approx(peer, abs=1e-9)


@pytest.mark.parametrize("rank", [1, 3, 4, 16])
@pytest.mark.parametrize("sweeps", [1, 2])
def test_c_gives_what_numpy_gives(rank: int, sweeps: int) -> None:
    """Also for a factor that no row of the others has, which stays as it is."""
    wanted, other, data = problem(rank)
    other[:, -1] = 0.0
    got = wanted.copy()
    improve_in_python(wanted, data @ other, other.T @ other, 0.0, sweeps)
    improve(got, data @ other, other.T @ other, 0.0, sweeps)
    assert got == pytest.approx(wanted, rel=1e-10, abs=1e-12)
    assert got[:, -1].tolist() == problem(rank)[0][:, -1].tolist()


def test_factors_of_any_layout_are_improved_in_place() -> None:
    wanted, other, data = problem(4)
    got = np.asfortranarray(wanted)
    improve_in_python(wanted, data @ other, other.T @ other, 0.1, 2)
    improve(got, np.asfortranarray(data @ other), other.T @ other, 0.1, 2)
    assert got == pytest.approx(wanted, rel=1e-10)

"""Sparse products are those of dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.paramserver.api.columns import Ragged
from hpcbal.paramserver.apps import sparse_rows
from hpcbal.paramserver.apps.sparse_rows import SparseRows


@given(st.lists(st.lists(st.integers(0, 12), max_size=6), min_size=1, max_size=8), st.integers(1, 4))
def test_products_equal_those_of_dense_matrices(ids: list[list[int]], num_columns: int) -> None:
    rng = np.random.default_rng(len(ids))
    matrix = np.zeros((len(ids), 13))
    values = [rng.normal(size=len(each)) for each in ids]
    for row, each, numbers in zip(matrix, ids, values, strict=True):
        np.add.at(row, each, numbers)
    indices = Ragged.of([np.array(each, np.int64) for each in ids], "int64")
    samples = SparseRows.of(indices, Ragged.of(values, "float64"))
    table, factors = rng.normal(size=(13, num_columns)), rng.normal(size=(len(ids), num_columns))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse_rows, "MOST_TERMS", 5)  # several pieces
        for without_scipy in (False, True):
            if without_scipy:
                patch.setattr(sparse_rows, "_scipy_matrix", lambda: None)
            assert samples.times(table[samples.rows]) == pytest.approx(matrix @ table)
            product = np.zeros((13, num_columns))
            product[samples.rows] = samples.transposed_times(factors)
            assert product == pytest.approx(matrix.T @ factors)
    assert samples.counts().sum() == len(indices.values)

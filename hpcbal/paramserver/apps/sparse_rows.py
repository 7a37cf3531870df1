"""Products of sparse samples and the rows of a table: both directions, with SciPy where it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hpcbal.paramserver.api.columns import IntArray, Ragged

FloatArray = NDArray[Any]

MOST_TERMS = 2**18
"""Products that are held at a time: 2 MiB of float64, which caches hold."""


def sum_by_sample(terms: FloatArray, offsets: IntArray) -> FloatArray:
    """Add the terms of each sample.

    Args:
        terms: of all samples side by side, shape (total, ...).
        offsets: shape (num_samples + 1,), as in `Ragged`; may start above 0.

    Returns: shape (num_samples, ...); 0 for samples without terms.
    """
    sums = np.zeros((len(offsets) - 1, *terms.shape[1:]), terms.dtype)
    has_terms = offsets[1:] > offsets[:-1]
    if has_terms.any():
        # `reduceat` would give a sample without terms the first term of the next one.
        starts = offsets[:-1][has_terms] - offsets[0]
        sums[has_terms] = np.add.reduceat(terms, starts, axis=0)
    return sums


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Samples as sparse vectors over the rows of a table that were pulled for them.

    Attributes:
        rows: ids of the rows that samples name, ascending, each once.
        places: where the rows of all samples lie in `rows`, side by side, shape (total,).
        offsets: sample i has places[offsets[i]:offsets[i + 1]].
        values: the number of each sample at each of its rows, shape (total,).
    """

    rows: IntArray
    places: IntArray
    offsets: IntArray
    values: FloatArray

    @classmethod
    def of(cls, indices: Ragged, values: Ragged) -> Self:
        """Find the rows that the samples name."""
        rows, places = np.unique(indices.values, return_inverse=True)
        return cls(rows.astype(np.int64), places, indices.offsets, values.values)

    @classmethod
    def over_all(cls, indices: Ragged, values: Ragged, num_rows: int) -> Self:
        """Samples over all rows of a table, which need no search."""
        return cls(np.arange(num_rows), indices.values, indices.offsets, values.values)

    def counts(self) -> IntArray:
        """Number of terms of each row, shape (len(rows),)."""
        return np.bincount(self.places, minlength=len(self.rows))

    def times(self, table: FloatArray) -> FloatArray:
        """Multiply each sample with the pulled rows.

        Args:
            table: shape (len(rows), num_columns).

        Returns: shape (num_samples, num_columns).
        """
        if table.shape[1] == 1:
            return sum_by_sample(table[:, 0][self.places] * self.values, self.offsets)[:, np.newaxis]
        matrix = self._matrix()
        if matrix is not None:
            product: FloatArray = matrix @ table
            return product
        product = np.zeros((len(self.offsets) - 1, table.shape[1]), np.result_type(table, self.values))
        for start, stop, terms in self._pieces(table.shape[1]):
            gathered = table[self.places[terms]] * self.values[terms, np.newaxis]
            product[start:stop] = sum_by_sample(gathered, self.offsets[start : stop + 1])
        return product

    def transposed_times(self, samples: FloatArray) -> FloatArray:
        """Add to each row the samples that name it, times their numbers.

        Args:
            samples: shape (num_samples, num_columns).

        Returns: shape (len(rows), num_columns).
        """
        lengths = np.diff(self.offsets)
        if samples.shape[1] == 1:
            terms = np.repeat(samples[:, 0], lengths) * self.values
            return np.bincount(self.places, terms, len(self.rows))[:, np.newaxis]
        matrix = self._matrix()
        if matrix is not None:
            product: FloatArray = matrix.T @ samples
            return product
        product = np.zeros((len(self.rows), samples.shape[1]), np.result_type(samples, self.values))
        for start, stop, piece in self._pieces(samples.shape[1]):
            places = self.places[piece]
            order = np.argsort(places, kind="stable")
            owners = np.repeat(np.arange(start, stop), lengths[start:stop])[order]
            gathered = samples[owners] * self.values[piece][order, np.newaxis]
            counts = np.bincount(places, minlength=len(self.rows))
            named = np.flatnonzero(counts)
            product[named] += np.add.reduceat(gathered, (np.cumsum(counts) - counts)[named], axis=0)
        return product

    def _matrix(self) -> Any:
        """The same as a sparse matrix of SciPy; None without SciPy, which is several times as fast."""
        make = _scipy_matrix()
        if make is None:
            return None
        return make((self.values, self.places, self.offsets), (len(self.offsets) - 1, len(self.rows)))

    def _pieces(self, num_columns: int) -> Iterator[tuple[int, int, slice]]:
        """Runs of samples with about `MOST_TERMS` products each, and where their terms are."""
        most = max(1, MOST_TERMS // num_columns)
        start, last = 0, len(self.offsets) - 1
        while start < last:
            stop = int(np.searchsorted(self.offsets, self.offsets[start] + most, side="right")) - 1
            stop = min(max(stop, start + 1), last)
            terms = slice(int(self.offsets[start]), int(self.offsets[stop]))
            if terms.stop > terms.start:
                yield start, stop, terms
            start = stop


@cache
def _scipy_matrix() -> Any:
    try:
        from scipy.sparse import csr_array
    except ImportError:  # hpcbal runs without it; scikit-learn brings it along
        return None
    return csr_array

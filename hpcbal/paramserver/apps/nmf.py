"""Non-negative matrix factorisation: factors of users at the workers, those of items at the servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.paramserver.api.app import App, SampleSource
from hpcbal.paramserver.api.batch import Batch
from hpcbal.paramserver.api.columns import Array, Columns, IntArray, Ragged
from hpcbal.paramserver.api.update import Access, Needs, Parameters, Table, Update, Updates
from hpcbal.paramserver.apps.arguments import (
    check_above_0,
    check_at_least,
    check_choice,
    count_of,
    first_samples,
    ragged_column,
)
from hpcbal.paramserver.apps.sparse_rows import sum_by_sample

_NAME = "NMF"
_CAUTION = 8.0
"""A rating counts this often in the curvature of its own step: a user whom an item meets alone in a step must
not change it as much as all of its users would together."""

_TINY = 1e-12
"""Keeps quotients finite where factors are 0."""


class NMF(App):
    """Minimise, over L, R >= 0, the mean over all ratings of (rating - L_i . R_j)^2 + l2 (|L_i|^2 + |R_j|^2).

    A sample is a user i with the ragged columns `items` (ids) and `ratings`; the dataset states `num_items`.
    Entries that are not listed are unknown, not 0. A turn

    1. improves the factors of its users by coordinate descent with the pulled items (exact for each factor);
    2. pushes a stochastic gradient step of the items, divided by the curvature that a step has on average:
       the sum of |L_i|^2 over an item's users, times the share of the samples that a step takes.

    The table holds this curvature in its last column. A user pushes what its own changes by, so the sum stays
    right. Clipping at 0 after every push would make results depend on the order of pushes. Instead, workers
    clip what they pull, and each push takes away a share of what lies below 0.

    Args:
        source: the dataset.
        rank: number of factors, >= 1.
        learning_rate: of the items; 1 is a step to the minimum along the curvature; > 0.
        decay: the step size of epoch e is learning_rate / (1 + decay * e); >= 0.
        l2: weight of the regulariser, >= 0.
        sweeps: of the coordinate descent over a user's factors per turn, >= 1.
        access: `sparse`: a turn pulls the items that its users rated; `dense`: all.

    Metrics: `loss` (the minimised function), `rmse` (root of the mean squared error).

    Source: A. Cichocki and A.-H. Phan, "Fast local algorithms for large scale nonnegative matrix and tensor
        factorizations", IEICE Trans. E92-A, 2009 (step 1); Y. Zhou et al., "Large-scale parallel
        collaborative filtering for the Netflix prize", AAIM 2008 (the regulariser).
    """

    def __init__(
        self,
        source: SampleSource,
        rank: int = 16,
        learning_rate: float = 1.0,
        decay: float = 0.0,
        l2: float = 0.0,
        sweeps: int = 1,
        access: Access = "sparse",
    ) -> None:
        super().__init__(source)
        check_at_least(_NAME, 1, rank=rank, sweeps=sweeps)
        check_above_0(_NAME, learning_rate=learning_rate)
        check_at_least(_NAME, 0, decay=decay, l2=l2)
        check_choice(_NAME, "access", access, ("sparse", "dense"))
        self._table = Table("items", count_of(_NAME, source, "num_items"), int(rank) + 1, access=access)
        self._rank, self._sweeps, self._l2 = int(rank), int(sweeps), l2
        self._learning_rate, self._decay = learning_rate, decay
        self._scale = _scale_of(source, self._rank)

    def tables(self) -> Sequence[Table]:
        return (self._table,)

    def initial(self, table: str, rows: IntArray, rng: np.random.Generator) -> NDArray[Any]:
        """Factors around the root of the mean rating by rank, and no curvature."""
        values = np.zeros((len(rows), self._rank + 1))
        values[:, :-1] = self._scale * rng.uniform(0.0, 2.0, (len(rows), self._rank))
        return values

    def initial_state(self, columns: Columns, rng: np.random.Generator) -> Columns:
        """Each user's factors, and the sum of their squares that its items know of."""
        factors = np.full((len(columns["items"]), self._rank), self._scale)
        return {"factors": factors, "known": _squares(factors)}

    def initial_updates(self, batch: Batch) -> Updates:
        """The curvature of the items."""
        items = batch.ragged("items")
        norms = batch.array("known")
        rows, places = np.unique(items.values, return_inverse=True)
        deltas = np.zeros((len(rows), self._rank + 1))
        deltas[:, -1] = np.bincount(places, np.repeat(norms, items.lengths), len(rows))
        return {"items": Update(deltas, rows)}

    def needs(self, batch: Batch) -> Needs:
        return {"items": self._rows(batch)[0]} if self._table.access == "sparse" else {}

    def compute(self, batch: Batch, parameters: Parameters) -> Updates:
        rows, places = self._rows(batch)
        pulled = parameters["items"] if self._table.access == "sparse" else parameters["items"][rows]
        raw, curvature = pulled[:, :-1], pulled[:, -1]
        items = np.maximum(raw, 0.0)
        ratings, factors, known = batch.ragged("ratings"), batch.array("factors"), batch.array("known")
        errors = self._improve(factors, items.T[:, places], ratings)

        rate = self._learning_rate / (1.0 + self._decay * batch.epoch)
        norms = _squares(factors)
        share = batch.step_samples / self.source.num_samples
        own = np.repeat(norms, ratings.lengths)
        weights = 1.0 / (share * curvature[places] + _CAUTION * own + _TINY)
        errors *= weights
        deltas = np.empty_like(pulled)
        for k in range(self._rank):
            factor = np.repeat(factors[:, k], ratings.lengths)
            deltas[:, k] = np.bincount(places, errors * factor, len(rows))
        deltas[:, :-1] *= rate
        if self._l2:
            deltas[:, :-1] -= rate * self._l2 * np.bincount(places, weights, len(rows))[:, np.newaxis] * items
        below = np.bincount(places, weights * own, len(rows))
        deltas[:, :-1] += below[:, np.newaxis] * (items - raw)
        deltas[:, -1] = np.bincount(places, np.repeat(norms - known, ratings.lengths), len(rows))
        known[:] = norms
        return {"items": Update(deltas, rows)}

    def objective(self, batch: Batch, parameters: Parameters) -> Mapping[str, float]:
        rows, places = self._rows(batch)
        pulled = parameters["items"] if self._table.access == "sparse" else parameters["items"][rows]
        items = np.maximum(pulled[:, :-1], 0.0)
        ratings, factors = batch.ragged("ratings"), batch.array("factors")
        errors = ratings.values - _products(factors, items.T[:, places], ratings.lengths)
        squares = ratings.lengths @ _squares(factors) + np.bincount(places, minlength=len(rows)) @ _squares(
            items
        )
        return {
            "squared_error": float(errors @ errors),
            "squares": float(squares),
            "ratings": float(len(errors)),
        }

    def metrics(self, sums: Mapping[str, float]) -> Mapping[str, float]:
        mean = sums["squared_error"] / sums["ratings"]
        return {"loss": mean + self._l2 * sums["squares"] / sums["ratings"], "rmse": mean**0.5}

    def _rows(self, batch: Batch) -> tuple[IntArray, IntArray]:
        """Ids of the items that the batch rates, and the place of each rating's item among them."""
        if "rows" not in batch.memo:
            batch.memo["rows"] = np.unique(batch.ragged("items").values, return_inverse=True)
        rows, places = batch.memo["rows"]
        return rows, places

    def _improve(self, factors: Array, items: Array, ratings: Ragged) -> Array:
        """Coordinate descent over the users' factors, in place.

        Args:
            factors: shape (num_samples, rank).
            items: factors of the item of each rating, shape (rank, num_ratings).
            ratings: by user.

        Returns: what is left of each rating, shape (num_ratings,).
        """
        lengths = ratings.lengths
        errors: Array = ratings.values - _products(factors, items, lengths)
        penalty = self._l2 * lengths + _TINY
        curvatures = [sum_by_sample(item * item, ratings.offsets) + penalty for item in items]
        for k in list(range(self._rank)) * self._sweeps:
            old = factors[:, k].copy()
            slope = sum_by_sample(errors * items[k], ratings.offsets) - penalty * old
            factors[:, k] = np.maximum(old + slope / curvatures[k], 0.0)
            errors -= np.repeat(factors[:, k] - old, lengths) * items[k]
        return errors


def _products(factors: Array, items: Array, lengths: IntArray) -> Array:
    """L_i . R_j of each rating; see `NMF._improve` for the arguments."""
    products = np.zeros(items.shape[1])
    for k, item in enumerate(items):
        products += np.repeat(factors[:, k], lengths) * item
    return products


def _squares(factors: Array) -> Array:
    """Sum of squares of each row."""
    squares: Array = np.einsum("ij,ij->i", factors, factors)
    return squares


def _scale_of(source: SampleSource, rank: int) -> float:
    """Factors whose product is the mean rating of the first samples."""
    columns = first_samples(_NAME, source, ("items", "ratings"), lists=("items", "ratings"))
    ratings = ragged_column(_NAME, columns, "ratings")
    mean = float(ratings.values.mean()) if len(ratings.values) else 1.0
    return float(np.sqrt(max(mean, _TINY) / rank))

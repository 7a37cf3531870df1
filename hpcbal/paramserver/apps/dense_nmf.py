"""Non-negative matrix factorisation where every entry is known, from sums that the servers keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import InputError
from hpcbal.paramserver.api.app import App, SampleSource
from hpcbal.paramserver.api.batch import Batch
from hpcbal.paramserver.api.columns import Columns, IntArray
from hpcbal.paramserver.api.update import Parameters, Table, Updates
from hpcbal.paramserver.apps.arguments import check_above_0, check_at_least, count_of, first_samples
from hpcbal.paramserver.apps.descent import improve

_NAME = "DenseNMF"
_TINY = 1e-12


class DenseNMF(App):
    """Minimise, over L, R >= 0, the mean over all entries of (X_ij - L_i . R_j)^2 + l2 (|L_i|^2 + |R_j|^2).

    A sample is a row i of X in the column `features`, shape (n, num_features), none below 0; the dataset
    states `num_features`. The servers hold R and two sums over the rows that were seen: A of L_i L_i^T, and B
    of X_i L_i^T. The best R for the present L follows from A and B alone. A turn

    1. pulls all three, and improves R by one sweep of coordinate descent; every worker finds the same;
    2. improves the factors of its rows with this R;
    3. pushes what its rows change in A and B, and its share of the change of R. All shares of a step add up
       to the whole, so pushes are sums, and in `sync` R never falls below 0.

    With `stale` or `async`, several turns find the same change of R, and their pushes would go too far: set
    `relaxation` to 1 over the number of turns that overlap. Workers clip at 0 what they pull.

    Args:
        source: the dataset.
        rank: number of factors, >= 1.
        l2: weight of the regulariser, >= 0.
        sweeps: of the coordinate descent over a row's factors per turn, >= 1.
        relaxation: share of the change of R that a step makes, above 0 to 1.

    Metrics: `loss` (the minimised function), `rmse` (root of the mean squared error).

    Source: J. Mairal et al., "Online learning for matrix factorization and sparse coding", JMLR 11, 2010,
        Alg. 1 and 2. Deviation: a row that comes again replaces its old terms in A and B.
    """

    def __init__(
        self,
        source: SampleSource,
        rank: int = 16,
        l2: float = 0.0,
        sweeps: int = 2,
        relaxation: float = 1.0,
    ) -> None:
        super().__init__(source)
        check_at_least(_NAME, 1, rank=rank, sweeps=sweeps)
        check_at_least(_NAME, 0, l2=l2)
        check_above_0(_NAME, relaxation=relaxation)
        self._relaxation = min(float(relaxation), 1.0)
        self._num_features = count_of(_NAME, source, "num_features")
        self._rank, self._l2, self._sweeps = int(rank), float(l2), int(sweeps)
        first = np.asarray(first_samples(_NAME, source, ("features",))["features"])
        if (first < 0).any():
            raise InputError(f"data: {_NAME} got numbers below 0, which no product of factors >= 0 gives")
        self._scale = float(np.sqrt(max(float(first.mean()), _TINY) / self._rank))

    def tables(self) -> Sequence[Table]:
        return (
            Table("factors", self._num_features, self._rank),
            Table("products", self._num_features, self._rank),
            Table("gram", self._rank, self._rank),
        )

    def initial(self, table: str, rows: IntArray, rng: np.random.Generator) -> NDArray[Any]:
        """Random factors around the root of the mean by rank; sums over no rows."""
        shape = (len(rows), self._rank)
        return self._scale * rng.uniform(0.0, 2.0, shape) if table == "factors" else np.zeros(shape)

    def initial_state(self, columns: Columns, rng: np.random.Generator) -> Columns:
        """Factors of rows that no sum knows of yet: 0."""
        return {"factors": np.zeros((len(columns["features"]), self._rank))}

    def compute(self, batch: Batch, parameters: Parameters) -> Updates:
        features, state = batch.array("features"), batch.array("factors")
        improved = np.maximum(parameters["factors"], 0.0)
        penalty = self._l2 * self.source.num_samples
        improve(improved, parameters["products"], parameters["gram"], penalty, 1)

        old = state.copy()
        state[~old.any(axis=1)] = self._scale
        penalty = self._l2 * self._num_features
        improve(state, features @ improved, improved.T @ improved, penalty, self._sweeps)
        share = self._relaxation * batch.num_samples / batch.step_samples
        return {
            "factors": share * (improved - parameters["factors"]),
            "products": features.T @ (state - old),
            "gram": state.T @ state - old.T @ old,
        }

    def objective(self, batch: Batch, parameters: Parameters) -> Mapping[str, float]:
        state = batch.array("factors")
        errors = batch.array("features") - state @ np.maximum(parameters["factors"], 0.0).T
        return {
            "squared_error": float(np.vdot(errors, errors)),
            "row_squares": float(np.vdot(state, state)),
            "rows": float(batch.num_samples),
        }

    def parameter_objective(self, table: str, values: NDArray[Any]) -> Mapping[str, float]:
        return {"column_squares": float(np.vdot(values, values))} if table == "factors" else {}

    def metrics(self, sums: Mapping[str, float]) -> Mapping[str, float]:
        mean = sums["squared_error"] / (sums["rows"] * self._num_features)
        squares = sums["row_squares"] / sums["rows"] + sums["column_squares"] / self._num_features
        return {"loss": mean + self._l2 * squares, "rmse": mean**0.5}

"""Small apps whose jobs end in a moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hpcbal.paramserver.api.app import App
from hpcbal.paramserver.api.batch import Batch
from hpcbal.paramserver.api.columns import Columns, Ragged
from hpcbal.paramserver.api.update import Needs, Parameters, Table, Updates
from hpcbal.paramserver.apps import MLR
from hpcbal.paramserver.apps.sources import ArraySource


def mlr() -> App:
    rng = np.random.default_rng(5)
    features = rng.normal(size=(90, 7))
    labels = (features @ rng.normal(size=(7, 3))).argmax(axis=1)
    source = ArraySource({"features": features, "labels": labels}, {"num_features": 7, "num_classes": 3})
    return MLR(source, learning_rate=0.5, l2=0.01)


class Ratings(App):
    """Factors of a matrix by SGD: those of rows are the state of samples, those of columns a sparse table."""

    RANK = 4
    NUM_ITEMS = 30

    def tables(self) -> Sequence[Table]:
        return (Table("items", self.NUM_ITEMS, self.RANK, "float64", "sparse"),)

    def initial(self, table: str, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return rng.uniform(0.1, 1.0, (len(rows), self.RANK))

    def initial_state(self, columns: Columns, rng: np.random.Generator) -> Columns:
        return {"users": rng.uniform(0.1, 1.0, (len(columns["items"]), self.RANK))}

    def needs(self, batch: Batch) -> Needs:
        return {"items": np.unique(batch.columns["items"])}

    def compute(self, batch: Batch, parameters: Parameters) -> Updates:
        rows = self.needs(batch)["items"]
        users, items = batch.state["users"], batch.columns["items"]
        places = np.searchsorted(rows, items)  # shape (num_samples, 3)
        deltas = np.zeros((len(rows), self.RANK))
        for column in range(items.shape[1]):
            factors = parameters["items"][places[:, column]]
            error = batch.columns["ratings"][:, column] - (users * factors).sum(axis=1)
            np.add.at(deltas, places[:, column], 0.02 * error[:, np.newaxis] * users)
            users += 0.02 * error[:, np.newaxis] * factors
        return {"items": deltas}

    def objective(self, batch: Batch, parameters: Parameters) -> Mapping[str, float]:
        places = np.searchsorted(self.needs(batch)["items"], batch.columns["items"])
        scores = np.einsum("nr,ncr->nc", batch.state["users"], parameters["items"][places])
        return {"squares": float(np.square(batch.columns["ratings"] - scores).sum())}

    def metrics(self, sums: Mapping[str, float]) -> Mapping[str, float]:
        return {"loss": sums["squares"]}


def ratings() -> App:
    rng = np.random.default_rng(6)
    items = np.argsort(rng.random((80, Ratings.NUM_ITEMS)), axis=1)[:, :3]
    return Ratings(ArraySource({"items": items, "ratings": rng.uniform(1, 5, (80, 3))}, {}))


class Documents(App):
    """Ragged samples with a ragged state, both of which turns read, and which they change at random."""

    def tables(self) -> Sequence[Table]:
        return (Table("counts", 12, 2),)

    def initial_state(self, columns: Columns, rng: np.random.Generator) -> Columns:
        words = columns["words"]
        assert isinstance(words, Ragged)
        topics = Ragged(rng.integers(0, 2, len(words.values)), words.offsets)
        return {"topics": topics, "visits": np.zeros(len(words), np.int32)}

    def _counts(self, batch: Batch) -> np.ndarray:
        counts = np.zeros((12, 2))
        np.add.at(counts, (batch.ragged("words").values, batch.ragged("topics").values), 1.0)
        return counts

    def initial_updates(self, batch: Batch) -> Updates:
        return {"counts": self._counts(batch)}

    def compute(self, batch: Batch, parameters: Parameters) -> Updates:
        before, words = self._counts(batch), batch.ragged("words").values
        drawn = batch.draw(lambda rng, count: rng.random(count)).repeat(batch.ragged("words").lengths)
        shares = parameters["counts"][words, 0] / parameters["counts"][words].sum(axis=1)
        batch.ragged("topics").values[:] = drawn > shares
        batch.array("visits")[:] += batch.epoch + 1
        return {"counts": self._counts(batch) - before}

    def objective(self, batch: Batch, parameters: Parameters) -> Mapping[str, float]:
        counts = self._counts(batch)
        return {"ones": float(counts[:, 1] @ np.arange(12)), "visits": float(batch.array("visits").sum())}

    def metrics(self, sums: Mapping[str, float]) -> Mapping[str, float]:
        return dict(sums)


def documents() -> App:
    rng = np.random.default_rng(7)
    words = Ragged.of([rng.integers(0, 12, rng.integers(0, 9)) for _ in range(90)], "int64")
    return Documents(ArraySource({"words": words, "ids": np.arange(90)}, {}))


APPS = {"mlr": mlr, "ratings": ratings}

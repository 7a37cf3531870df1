"""Predict the watched validation items in each pass of a group, so that rank 0 can compare committees."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcbal.data.spec import UNNAMED
from hpcbal.ensembling.evidence import Evidence, WatchedItems, encoded
from hpcbal.errors import InputError
from hpcbal.training.backend import Batch, Replica
from hpcbal.training.outputs import by_name
from hpcbal.training.weights import Array


@dataclass(frozen=True, slots=True)
class _Part:
    """Some samples of a batch; see `hpcbal.training.backend.Batch`."""

    ids: Array
    x: Array | list[Array]
    y: Array
    work: float
    padding_limit: float


def part_of(batch: Batch, rows: Array) -> Batch:
    """Return the samples in these rows of a batch, at least one."""
    x = [batch.x[row] for row in rows] if isinstance(batch.x, list) else batch.x[rows]
    share = len(rows) / len(batch.ids)
    return _Part(batch.ids[rows], x, batch.y[rows], batch.work * share, batch.padding_limit)


class GroupEvidence:
    """The evidence of a pass so far, equal on all ranks of the group.

    A rank predicts the watched items among its own validation samples. The numbers are summed with the step,
    each item's on the one rank that has its sample; a second row counts the ranks, so that an item whose
    sample is broken, or was validated before the evidence was wanted, is known to be missing.

    Args:
        watched: the items.
        dnn_name: for messages.
        so_far: from `array`, of a pass that was interrupted; None: it begins.
    """

    def __init__(self, watched: WatchedItems, dnn_name: str, so_far: Array | None = None) -> None:
        self._watched = watched
        self._dnn_name = dnn_name
        shape = (2, len(watched))
        fits = so_far is not None and so_far.shape == shape
        self._sums = np.array(so_far, np.float64) if so_far is not None and fits else np.zeros(shape)

    def numbers(self, replica: Replica, batch: Batch) -> Array:
        """Return what this rank adds for a batch of validation samples, float64, shape (2 * items,)."""
        added = np.zeros(self._sums.shape)
        items = self._watched.items_in(batch.ids)
        if len(items):
            rows = np.flatnonzero(np.isin(batch.ids, self._watched.sample_ids[items]))
            part = part_of(batch, rows)
            predictions = by_name(replica.predict(part))[UNNAMED]
            try:
                added[0, items] = self._watched.evidence(items, part.ids, predictions, np.asarray(part.y))
            except InputError as error:
                raise InputError(f"DNN {self._dnn_name}: {error}") from error
            added[1, items] = 1.0
        return added.reshape(-1)

    @property
    def nothing(self) -> Array:
        """The numbers of a rank that has no samples, or has failed."""
        return np.zeros(self._sums.size)

    def add(self, summed: Array) -> None:
        """Take the sum over the group of what the ranks have added in a step."""
        self._sums += summed.reshape(self._sums.shape)

    def array(self) -> Array:
        """Return the evidence so far, for a checkpoint inside the pass."""
        return self._sums.copy()

    def take(self) -> str:
        """Return the evidence of the pass that has ended, as text, and begin the next one."""
        values, known = self._sums
        found: Evidence = np.where(known == 1.0, values, np.nan)
        self._sums = np.zeros(self._sums.shape)
        return encoded(found, self._watched.kind)

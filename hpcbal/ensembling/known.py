"""Predictions of DNNs after their epochs that rank 0 knows, as rows from which a committee is chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcbal.ensembling.evidence import Evidence, decoded
from hpcbal.ensembling.selection import Loss, greedy_selection, log_loss_of_mean, squared_error_of_mean

MOST_ROUNDS = 10
"""Rounds of a greedy selection during a run."""

WEIGHT = 1 / 6
"""The weight that a DNN gets in the committee of the others, to see what it adds."""


@dataclass(frozen=True, slots=True)
class KnownPredictions:
    """Predictions of those DNNs that can be combined, for the same items.

    Attributes:
        by_epoch: of each DNN after its epochs, from 0, as far as they are known.
        best: the best epoch of each DNN among these, by its monitored metric.
        are_errors: whether they are errors of values, not probabilities.
        is_usable: items that all DNNs predict in their best epochs, shape (num_items,).
    """

    by_epoch: Mapping[str, Mapping[int, Evidence]]
    best: Mapping[str, int]
    are_errors: bool
    is_usable: NDArray[np.bool_]

    @classmethod
    def of(
        cls, epochs: Mapping[str, tuple[Sequence[float], Sequence[str | None]]]
    ) -> KnownPredictions | None:
        """Return what is known; None if there is no item that some DNNs predict in their best epochs.

        Args:
            epochs: the monitored metric of each DNN after its epochs, more is better, and its predictions, as
                `encoded` writes them.
        """
        known = {name: _rows_by_epoch(texts) for name, (_, texts) in epochs.items()}
        # Where a resumed run has other settings, predictions from before do not compare with those of now.
        forms = Counter(next(reversed(rows.values()))[0] for rows in known.values() if rows)
        if not forms:
            return None
        form = max(forms, key=lambda each: forms[each])
        alike = {n: {e: r for e, (its, r) in rows.items() if its == form} for n, rows in known.items()}
        # A DNN that predicts nothing that is a number is in no committee.
        by_epoch = {n: {e: r for e, r in rows.items() if not np.isnan(r).all()} for n, rows in alike.items()}
        by_epoch = {name: rows for name, rows in by_epoch.items() if rows}
        if not by_epoch:
            return None
        best = {n: max(rows, key=lambda e: (epochs[n][0][e], -e)) for n, rows in by_epoch.items()}
        is_usable = ~np.isnan([by_epoch[name][epoch] for name, epoch in best.items()]).any(axis=0)
        return cls(by_epoch, best, form[0] == "e", is_usable) if is_usable.any() else None

    @property
    def rows(self) -> Evidence:
        """The predictions in the best epochs for the usable items, shape (num_dnns, n)."""
        return np.array([self.by_epoch[name][epoch] for name, epoch in self.best.items()])[:, self.is_usable]

    @property
    def loss(self) -> Loss:
        """The loss of combined rows."""
        return (
            squared_error_of_mean(np.zeros(int(self.is_usable.sum())))
            if self.are_errors
            else log_loss_of_mean
        )


def changes_by_each(rows: Evidence, loss: Loss) -> list[float]:
    """Return by how much each DNN, added to the committee of all others, changes its loss; less is better.

    The loss itself would not do: without the best DNN the others' committee is poor, so that one would seem
    bad.

    Args:
        rows: of each DNN, shape (num_dnns, n).
        loss: of combined rows.
    """
    if len(rows) == 1:
        return [0.0]
    whole = greedy_selection(rows, loss, MOST_ROUNDS)
    found = []
    for index, row in enumerate(rows):
        mean = np.array(whole.weights) @ rows
        if whole.counts[index]:  # otherwise it is a committee of the others
            others = np.delete(rows, index, axis=0)
            mean = np.array(greedy_selection(others, loss, MOST_ROUNDS).weights) @ others
        found.append(float(loss((1.0 - WEIGHT) * mean + WEIGHT * row) - loss(mean)))
    return found


def _rows_by_epoch(texts: Sequence[str | None]) -> dict[int, tuple[tuple[str, int], Evidence]]:
    """The known predictions after each epoch, from 0, with their form: letter and number of items."""
    found = {}
    for epoch, text in enumerate(texts):
        if text is not None:
            letter, numbers = decoded(text)
            found[epoch] = (letter, len(numbers)), numbers
    return found

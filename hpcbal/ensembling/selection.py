"""Choose which DNNs to combine, by greedy selection with replacement, also while they train."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcbal.ensembling.answers import TINY
from hpcbal.ensembling.evidence import Evidence, decoded
from hpcbal.errors import PolicyError

MOST_ROUNDS = 100
ROUNDING = 1e-12
"""Losses that differ relatively by less are equal."""

MOST_NUMBERS = 2**20
"""Combined predictions of about so many numbers are made at a time."""

Loss = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""The losses of combined predictions, shape (..., n), along the last axis; less is better."""


@dataclass(frozen=True, slots=True)
class Combination:
    """The DNNs of an ensemble.

    Attributes:
        counts: how often each DNN was taken, in the given order; at least one is above 0.
        loss: of the combination, on the data on which it was chosen.
    """

    counts: tuple[int, ...]
    loss: float

    @property
    def weights(self) -> tuple[float, ...]:
        """The weight of each DNN in the mean; they sum to 1."""
        return tuple(count / sum(self.counts) for count in self.counts)


def greedy_selection(
    predictions: NDArray[np.float64], loss: Loss, most_rounds: int = MOST_ROUNDS
) -> Combination:
    """Add, round by round, the DNN with which the mean of all that were added so far has the least loss.

    A DNN may be added several times, which gives it more weight. The combination with the least loss over
    all rounds is returned; of equal ones the smallest, and of equal DNNs the first.

    Args:
        predictions: one row per DNN, shape (num_dnns, n): all that `loss` needs of them.
        loss: called with means of some rows, shape (m, n).
        most_rounds: number of rounds, >= 1.

    Raises:
        PolicyError: if there is no DNN or no prediction.

    Source: [CARUANA] Sec. 2.1.
    """
    num_dnns = len(predictions)
    if not num_dnns or not predictions.size:
        raise PolicyError("greedy selection needs at least one DNN and one prediction of each")
    total = np.zeros(predictions.shape[1])
    counts = [0] * num_dnns
    best: Combination | None = None
    step = max(1, MOST_NUMBERS // predictions.shape[1])
    for size in range(1, most_rounds + 1):
        losses: list[float] = []
        for first in range(0, num_dnns, step):
            losses += loss((total + predictions[first : first + step]) / size).tolist()
        least = min(losses)
        chosen = next(i for i, each in enumerate(losses) if each <= least + ROUNDING * abs(least))
        total += predictions[chosen]
        counts[chosen] += 1
        if best is None or losses[chosen] < best.loss - ROUNDING * abs(best.loss):
            best = Combination(tuple(counts), losses[chosen])
    assert best is not None
    return best


def log_loss_of_mean(truth: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean negative log-likelihood of combined probabilities of the right class.

    The mean of the DNNs' probabilities of the right class is all that the likelihood of their ensemble
    depends on, so a selection needs one number per DNN and item, whatever the number of classes.

    Args:
        truth: combined probability of the right class, shape (..., n).
    """
    losses: NDArray[np.float64] = np.asarray(-np.log(np.maximum(truth, TINY)).mean(axis=-1))
    return losses


def squared_error_of_mean(labels: NDArray[np.float64]) -> Loss:
    """The mean squared error of combined values.

    Args:
        labels: the right values, shape (n,).
    """
    return lambda values: np.asarray(np.square(values - labels).mean(axis=-1))


KNOWN_ROUNDS = 10
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
    whole = greedy_selection(rows, loss, KNOWN_ROUNDS)
    found = []
    for index, row in enumerate(rows):
        mean = np.array(whole.weights) @ rows
        if whole.counts[index]:  # otherwise it is a committee of the others
            others = np.delete(rows, index, axis=0)
            mean = np.array(greedy_selection(others, loss, KNOWN_ROUNDS).weights) @ others
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

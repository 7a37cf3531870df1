"""Choose which DNNs to combine: greedy selection with replacement on the validation set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcbal.ensembling.answers import TINY
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

"""How good predictions are, as sums over items: sums of parts add up, means do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hpcbal.ensembling.answers import TINY, Answers, Kind, answers_of

NUM_BINS = 15
"""Bins of confidence, of equal width, as in [GUO]."""

T = TypeVar("T", bound="Tally")


class Tally(Protocol):
    """Sums over items, from which scores follow."""

    @property
    def count(self) -> int:
        """Number of items."""

    def __add__(self: T, other: T) -> T: ...

    def scores(self) -> dict[str, float]:
        """Scores by name; at least one item is needed."""


@dataclass(frozen=True, slots=True)
class ClassTally:
    """Sums over items whose class was predicted.

    Attributes:
        count, right: items, and those whose predicted class is right.
        nll: sum of the negative log-likelihoods of the right classes, in nats.
        bins: for each bin of confidence, ((m-1)/15, m/15], its items, those that are right, and the sum of
            their confidences, shape (3, 15).
    """

    count: int
    right: int
    nll: float
    bins: NDArray[np.float64]

    @classmethod
    def of(cls, answers: Answers, labels: NDArray[np.int64]) -> ClassTally:
        """The sums over some items.

        Args:
            answers: of n items.
            labels: the right classes, shape (n,).
        """
        is_right = answers.predicted == labels
        bins = np.clip(np.ceil(answers.confidence * NUM_BINS).astype(np.int64) - 1, 0, NUM_BINS - 1)
        return cls(
            len(labels),
            int(is_right.sum()),
            float(-np.log(np.maximum(answers.truth, TINY)).sum()),
            np.stack(
                [
                    np.bincount(bins, weights, NUM_BINS).astype(np.float64)
                    for weights in (None, is_right, answers.confidence)
                ]
            ),
        )

    def __add__(self, other: ClassTally) -> ClassTally:
        return ClassTally(
            self.count + other.count,
            self.right + other.right,
            self.nll + other.nll,
            self.bins + other.bins,
        )

    def scores(self) -> dict[str, float]:
        """Accuracy (0..1), mean negative log-likelihood, and expected calibration error (0..1).

        The calibration error is the mean over bins of |accuracy - mean confidence|, weighted by the items of
        each.

        Source: [GUO] Eq. 3.
        """
        return {
            "accuracy": self.right / self.count,
            "nll": self.nll / self.count,
            "calibration_error": float(np.abs(self.bins[1] - self.bins[2]).sum() / self.count),
        }

    def reliability(self) -> list[tuple[int, float, float]]:
        """Return of each bin of confidence that is not empty its items, mean confidence and accuracy.

        Source: [GUO] Sec. 2, reliability diagrams.
        """
        return [
            (int(count), float(confidence / count), float(right / count))
            for count, right, confidence in self.bins.T
            if count
        ]


@dataclass(frozen=True, slots=True)
class ValueTally:
    """Sums over items whose value was predicted: of squared and of absolute errors."""

    count: int
    squared: float
    absolute: float

    @classmethod
    def of(cls, values: NDArray[np.float64], labels: NDArray[np.float64]) -> ValueTally:
        """The sums over some items; both arrays have shape (n,)."""
        errors = values - labels
        return cls(len(labels), float(np.square(errors).sum()), float(np.abs(errors).sum()))

    def __add__(self, other: ValueTally) -> ValueTally:
        return ValueTally(
            self.count + other.count, self.squared + other.squared, self.absolute + other.absolute
        )

    def scores(self) -> dict[str, float]:
        """Mean squared error and mean absolute error."""
        return {"mse": self.squared / self.count, "mae": self.absolute / self.count}


def tally_of(rows: NDArray[np.float64], labels: NDArray[np.float64], kind: Kind) -> ClassTally | ValueTally:
    """The sums over predictions, as `items_of` returns them.

    Args:
        rows: probabilities, shape (n, num_classes), or values, shape (n, 1).
        labels: the right classes or values, shape (n,).
        kind: what they are.
    """
    if kind == "values":
        return ValueTally.of(rows[:, 0], labels)
    classes = labels.astype(np.int64)
    return ClassTally.of(answers_of(rows, classes), classes)

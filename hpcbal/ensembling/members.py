"""How good predictions are, as sums over items, and how much each DNN contributes to the mean of all."""

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


MOST_COMPARED = 32
"""With more DNNs than this, they are not compared pair by pair."""


@dataclass(frozen=True, slots=True)
class MemberTally:
    """Sums over items of the losses of the mean of all DNNs, and of the differences between DNNs.

    Attributes:
        kind: kind of the predictions.
        count: number of items.
        of_all: sum of the losses of the mean of all: negative log-likelihoods in nats, or squared errors.
        without: the same of the mean of all others, for each DNN, shape (num_dnns,).
        apart: of each two DNNs, items for which they predict different classes, or the sum of the squared
            differences of values, shape (num_dnns, num_dnns); None for more than MOST_COMPARED.
    """

    kind: Kind
    count: int
    of_all: float
    without: NDArray[np.float64]
    apart: NDArray[np.float64] | None

    @classmethod
    def of(
        cls,
        evidence: NDArray[np.float64],
        predicted: NDArray[np.int32],
        labels: NDArray[np.float64],
        kind: Kind,
    ) -> MemberTally:
        """Return the sums over some items.

        Args:
            evidence: of each DNN, its probability of the right class, or its value, shape (num_dnns, n);
                at least two DNNs.
            predicted: of each DNN, the class that it predicts, shape (num_dnns, n); not used for values.
            labels: the right classes or values, shape (n,).
            kind: kind of the predictions.
        """
        num_dnns, total = len(evidence), evidence.sum(axis=0)
        without = [_loss((total - own) / (num_dnns - 1), labels, kind) for own in evidence]
        apart = None
        if num_dnns <= MOST_COMPARED:
            unlike = (
                [np.square(evidence - own).sum(axis=1) for own in evidence]
                if kind == "values"
                else [(predicted != own).sum(axis=1) for own in predicted]
            )
            apart = np.array(unlike, np.float64)
        return cls(kind, len(labels), _loss(total / num_dnns, labels, kind), np.array(without), apart)

    def __add__(self, other: MemberTally) -> MemberTally:
        apart = None if self.apart is None or other.apart is None else self.apart + other.apart
        return MemberTally(
            self.kind,
            self.count + other.count,
            self.of_all + other.of_all,
            self.without + other.without,
            apart,
        )

    def contributions(self) -> list[float]:
        """Return by how much the mean loss of all rises without each DNN; below 0 where it falls."""
        found: list[float] = ((self.without - self.of_all) / self.count).tolist()
        return found

    def distances(self) -> list[list[float]]:
        """Return for each two DNNs the share of items, 0..1, for which they predict different classes.

        Of values it is the root of the mean squared difference. Empty if DNNs were not compared.
        """
        if self.apart is None:
            return []
        means = self.apart / self.count
        found: list[list[float]] = (np.sqrt(means) if self.kind == "values" else means).tolist()
        return found


def _loss(combined: NDArray[np.float64], labels: NDArray[np.float64], kind: Kind) -> float:
    if kind == "values":
        return float(np.square(combined - labels).sum())
    return float(-np.log(np.maximum(combined, TINY)).sum())

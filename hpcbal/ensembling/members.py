"""How much each DNN contributes to the mean of all, and how unlike the others it predicts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcbal.ensembling.answers import TINY, Kind

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

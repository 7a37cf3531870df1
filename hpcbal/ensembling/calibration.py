"""Calibrate predictions on held-out samples: by a temperature for classes, by an interval for values."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcbal.ensembling.answers import TINY, Kind, answers_of
from hpcbal.ensembling.members import ClassTally
from hpcbal.errors import PolicyError

COVERAGE = 0.9
"""Share of new values that the interval around a prediction shall hold."""

_EQUAL = 1e-12
"""Relative difference of sums that rounding may make."""

_LOG_TEMPERATURES = np.linspace(-math.log(16.0), math.log(16.0), 49)


def is_at_bound(temperature: float | None) -> bool:
    """Whether a fitted temperature is the least or the largest that is tried; a better one may lie beyond."""
    return temperature in (float(np.exp(_LOG_TEMPERATURES[0])), float(np.exp(_LOG_TEMPERATURES[-1])))


def tempered(rows: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    """Return probabilities as if the logits behind them were divided by a temperature.

    Args:
        rows: probabilities, shape (n, num_classes), rows sum to 1.
        temperature: > 0; above 1, predictions become less certain.

    Source: [GUO] Eq. 9.
    """
    logits = np.log(np.maximum(rows, TINY)) / temperature
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    scaled: NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
    return scaled


@dataclass(frozen=True, slots=True)
class TemperatureTally:
    """Sums over items from which the best temperature follows.

    Attributes:
        count: number of items.
        nll: sum of the negative log-likelihoods of the right classes at each of some temperatures.
    """

    count: int
    nll: NDArray[np.float64]

    @classmethod
    def of(cls, rows: NDArray[np.float64], labels: NDArray[np.int64]) -> TemperatureTally:
        """Return the sums over some items.

        Args:
            rows: probabilities, shape (n, num_classes).
            labels: the right classes, shape (n,).
        """
        logits = np.log(np.maximum(rows, TINY))
        logits -= logits.max(axis=1, keepdims=True)
        truth = logits[np.arange(len(rows)), labels]
        nll = [
            float(np.log(np.exp(logits / t).sum(axis=1)).sum() - truth.sum() / t)
            for t in np.exp(_LOG_TEMPERATURES)
        ]
        return cls(len(rows), np.array(nll))

    def __add__(self, other: TemperatureTally) -> TemperatureTally:
        return TemperatureTally(self.count + other.count, self.nll + other.nll)

    def temperature(self) -> float:
        """Return the temperature with the least negative log-likelihood, 1/16 to 16.

        It is 1 without items, and if a likelihood is not a number.
        Of equally good ones it is the one nearest to 1: equal probabilities stay as they are.
        It is right to 1 %: it lies at the minimum of the parabola through the best of the tried ones and its
        neighbours, over the logarithm of the temperature.
        """
        if not self.count or not np.isfinite(self.nll).all():
            return 1.0
        equal = np.flatnonzero(self.nll <= self.nll.min() * (1.0 + _EQUAL))
        best = int(equal[np.abs(_LOG_TEMPERATURES[equal]).argmin()])
        if best in (0, len(self.nll) - 1):
            return float(np.exp(_LOG_TEMPERATURES[best]))
        before, here, after = self.nll[best - 1 : best + 2]
        curvature = before - 2.0 * here + after
        shift = 0.5 * (before - after) / curvature if curvature > _EQUAL * here else 0.0
        step = _LOG_TEMPERATURES[1] - _LOG_TEMPERATURES[0]
        return float(np.exp(_LOG_TEMPERATURES[best] + shift * step))

    def fitted(self) -> float | None:
        """Return the temperature; None without items."""
        return self.temperature() if self.count else None


@dataclass(frozen=True, slots=True)
class Residuals:
    """Values less predictions of some samples."""

    values: NDArray[np.float64]

    def __add__(self, other: Residuals) -> Residuals:
        return Residuals(np.concatenate([self.values, other.values]))

    def fitted(self) -> float | None:
        """Return half the width of the interval; None for too few samples."""
        found = half_width(self.values) if len(self.values) else math.inf
        return found if math.isfinite(found) else None


@dataclass(frozen=True, slots=True)
class CoverageTally:
    """Sums over items whose value was predicted with an interval."""

    count: int
    covered: int

    def __add__(self, other: CoverageTally) -> CoverageTally:
        return CoverageTally(self.count + other.count, self.covered + other.covered)

    def scores(self) -> dict[str, float]:
        """Return the share of the values inside the interval, 0..1."""
        return {"coverage": self.covered / self.count}


def half_width(residuals: NDArray[np.float64]) -> float:
    """Return half the width of the interval around a prediction that holds `COVERAGE` of new values.

    Args:
        residuals: values less predictions, of samples like the new ones, shape (n,), n >= 1.

    Returns: at least 0; inf for fewer samples than such a promise needs.

    Raises:
        PolicyError: if there is none.

    Source: [LEI] Sec. 2.2, split conformal prediction.
    """
    if not len(residuals):
        raise PolicyError("an interval needs at least one residual")
    rank = math.ceil((len(residuals) + 1) * COVERAGE)
    if rank > len(residuals):
        return math.inf
    return float(np.partition(np.abs(residuals), rank - 1)[rank - 1])


def calibration_evidence(
    rows: NDArray[np.float64], labels: NDArray[np.float64], kind: Kind
) -> TemperatureTally | Residuals:
    """Return the part of some held-out predictions from which their calibration follows; parts add up.

    Args:
        rows, labels, kind: see `tally_of`.
    """
    if kind == "values":
        return Residuals(labels - rows[:, 0])
    return TemperatureTally.of(rows, labels.astype(np.int64))


def calibrated_tally(
    rows: NDArray[np.float64], labels: NDArray[np.float64], kind: Kind, fitted: float
) -> ClassTally | CoverageTally:
    """Return the sums over calibrated predictions.

    Args:
        rows, labels, kind: see `tally_of`.
        fitted: the temperature, or half the width of the interval.
    """
    if kind == "values":
        return CoverageTally(len(rows), int((np.abs(rows[:, 0] - labels) <= fitted).sum()))
    classes = labels.astype(np.int64)
    return ClassTally.of(answers_of(tempered(rows, fitted), classes), classes)


def entropies(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the entropy of each row of probabilities in nats, shape (n,).

    Args:
        rows: shape (n, num_classes), rows sum to 1.
    """
    logs = np.log(np.maximum(rows, TINY))
    return np.asarray(-(rows * logs).sum(axis=1))

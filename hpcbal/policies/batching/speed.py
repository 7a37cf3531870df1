"""Predict every worker's speed in the next iteration from the last ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from hpcbal.errors import PolicyError
from hpcbal.policies.batching.curves import FloatArray
from hpcbal.policies.batching.task import Observation

HISTORY_ITERATIONS = 64  # an average of weight 0.2 per iteration owes 1e-6 of itself to older ones


@dataclass(frozen=True, slots=True, eq=False)
class SpeedHistory:
    """The last iterations of a group's workers; column -1 is the newest.

    Attributes:
        speeds: samples/s in the iteration that has just ended, > 0, shape (num_workers, n); NaN for a worker
            that never had a sample, and otherwise its last speed where it had none.
        cpu, memory: shares as observed after that iteration, which is how the next one begins; NaN where they
            were not measured; shape (num_workers, n).
    """

    speeds: FloatArray
    cpu: FloatArray
    memory: FloatArray

    @classmethod
    def empty(cls, num_workers: int) -> SpeedHistory:
        """Before the first iteration."""
        return cls(*(np.empty((num_workers, 0)) for _ in range(3)))

    @property
    def num_iterations(self) -> int:
        """Iterations that are remembered."""
        return int(self.speeds.shape[1])

    def with_observations(self, observations: Sequence[Observation]) -> SpeedHistory:
        """The history one iteration later; the oldest beyond `HISTORY_ITERATIONS` are dropped."""
        last = self.speeds[:, -1] if self.num_iterations else np.full(len(observations), np.nan)
        speeds = [
            seen.num_samples / seen.processing_s if seen.num_samples else before
            for seen, before in zip(observations, last.tolist(), strict=True)
        ]
        return SpeedHistory(
            _appended(self.speeds, speeds),
            _appended(self.cpu, [_number(seen.cpu_share) for seen in observations]),
            _appended(self.memory, [_number(seen.memory_share) for seen in observations]),
        )


class SpeedPredictor(ABC):
    """Predicts speeds; a frozen value whose fields are its settings and whatever was fitted beforehand."""

    @abstractmethod
    def predict(self, history: SpeedHistory) -> FloatArray:
        """Samples/s of each worker in the next iteration, shape (num_workers,).

        Called at the barrier, while all workers wait: it may cost no more than some hundred microseconds.

        Args:
            history: of at least one iteration.

        Returns: > 0, or NaN of a worker that never had a sample.
        """


@dataclass(frozen=True, slots=True)
class Memoryless(SpeedPredictor):
    """The next iteration will be as the last one.

    Source: [LBBSP] Sec. 3.2.2, Table 3.
    """

    def predict(self, history: SpeedHistory) -> FloatArray:
        """As `SpeedPredictor.predict`."""
        return history.speeds[:, -1]


@dataclass(frozen=True, slots=True)
class Ema(SpeedPredictor):
    """The exponential moving average of the last iterations.

    Attributes:
        alpha: weight of the newest iteration, 0 < alpha <= 1.

    Raises: PolicyError: alpha is out of range.
    Source: [LBBSP] Sec. 3.2.2, Table 3.
    """

    alpha: float = 0.2

    def __post_init__(self) -> None:
        if not 0.0 < self.alpha <= 1.0:
            raise PolicyError(f"ema: alpha: got {self.alpha!r}, allowed: 0 < alpha <= 1")

    def predict(self, history: SpeedHistory) -> FloatArray:
        """As `SpeedPredictor.predict`."""
        known = ~np.isnan(history.speeds)
        age = np.arange(history.num_iterations)[::-1]
        weights = known * self.alpha * (1.0 - self.alpha) ** age
        # What has passed before the first iteration counts as that one.
        oldest = np.argmax(known, axis=1)
        rest = (1.0 - self.alpha) ** (history.num_iterations - oldest)
        weights[np.arange(len(oldest)), oldest] += rest * known.any(axis=1)
        sums: FloatArray = (weights * np.where(known, history.speeds, 0.0)).sum(axis=1)
        return np.where(known.any(axis=1), sums, np.nan)


# Predictors that need no fitting.
PREDICTORS: Mapping[str, SpeedPredictor] = MappingProxyType({"ema": Ema(), "memoryless": Memoryless()})
# Those that `hpcbal.speed_models` fits, and the packages that they need.
FITTED_BY: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "arima": ("statsmodels",),
        "lstm": ("keras", "tensorflow"),
        "narx": ("keras", "psutil", "tensorflow"),
        "rnn": ("keras", "tensorflow"),
    }
)
# Those that look at the CPU and the memory of every worker's host.
HOST_READERS = frozenset({"narx"})
FITTED_EXTRAS = "balance,tensorflow"  # of our own package, which bring these


def _appended(window: FloatArray, newest: Sequence[float]) -> FloatArray:
    """The window with a column more, and without the oldest if it is full."""
    kept = window[:, -(HISTORY_ITERATIONS - 1) :]
    return np.column_stack([kept, np.array(newest, np.float64)])


def _number(share: float | None) -> float:
    return np.nan if share is None else share


def positive_speeds(predicted: FloatArray, history: SpeedHistory) -> FloatArray:
    """Predictions that a split can be made of, shape (num_workers,).

    A prediction is kept within half the least and twice the largest speed remembered: a model that errs must
    not starve a worker, nor give it everything. A worker of which nothing is known gets the others' mean.
    """
    known = ~np.isnan(history.speeds)
    some = known.any(axis=1)
    least = np.where(known, history.speeds, np.inf).min(axis=1) / 2
    most = np.where(known, history.speeds, 0.0).max(axis=1) * 2
    newest = history.speeds[:, -1]
    finite = np.where(np.isfinite(predicted), predicted, newest)
    limited: npt.NDArray[np.float64] = np.where(some, np.clip(finite, least, most), 1.0)
    if some.any() and not some.all():
        limited[~some] = limited[some].mean()
    return limited


def or_average(predicted: FloatArray, history: SpeedHistory) -> FloatArray:
    """Predictions, with the average of the last speeds where there is none."""
    known = np.isfinite(predicted)
    return predicted if known.all() else np.where(known, predicted, Ema().predict(history))


def check_same_workers(name: str, num_fitted: int, history: SpeedHistory) -> None:
    """Raises: PolicyError: a model that was fitted to some workers is asked about others."""
    num_workers = history.speeds.shape[0]
    if num_fitted != num_workers:
        raise PolicyError(
            f"{name}: the model was fitted to {num_fitted} workers, but {num_workers} are asked about; "
            "fit it anew when a group changes"
        )

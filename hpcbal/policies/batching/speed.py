"""Predict every worker's speed in the next iteration from the last ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcbal.policies.batching.task import Observation
from hpcbal.policies.batching.time_curves import FloatArray

HISTORY_ITERATIONS = 64  # whose speeds limit the next prediction


@dataclass(frozen=True, slots=True, eq=False)
class SpeedHistory:
    """The last iterations of a group's workers; column -1 is the newest.

    Attributes:
        speeds: samples/s in each iteration, > 0, shape (num_workers, n). A worker without samples in an
            iteration keeps its last speed; NaN if it never had a sample.
        cpu, memory: shares observed after each iteration, when the next one begins, shape (num_workers, n);
            NaN where they were not measured.
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
        """Number of iterations that are remembered."""
        return int(self.speeds.shape[1])

    def newest(self, num_iterations: int) -> SpeedHistory:
        """The last iterations alone; `num_iterations` >= 1."""
        return SpeedHistory(*(part[:, -num_iterations:] for part in (self.speeds, self.cpu, self.memory)))

    def with_observations(self, observations: Sequence[Observation]) -> SpeedHistory:
        """The history with one more iteration; at most `HISTORY_ITERATIONS` are kept."""
        last = self.speeds[:, -1] if self.num_iterations else np.full(len(observations), np.nan)
        speeds = [
            seen.work / seen.processing_s if seen.work else before
            for seen, before in zip(observations, last.tolist(), strict=True)
        ]
        return SpeedHistory(
            _appended(self.speeds, speeds),
            _appended(self.cpu, [_number(seen.cpu_share) for seen in observations]),
            _appended(self.memory, [_number(seen.memory_share) for seen in observations]),
        )


class SpeedPredictor(ABC):
    """Predicts speeds. A frozen value: its fields are settings and whatever was fitted beforehand."""

    @abstractmethod
    def predict(self, history: SpeedHistory) -> FloatArray:
        """Samples/s of each worker in the next iteration, shape (num_workers,).

        Called at the barrier while all workers wait, so it may take a few hundred microseconds at most.

        Args:
            history: of at least one iteration.

        Returns: speeds > 0; NaN for a worker that never had a sample.
        """


@dataclass(frozen=True, slots=True)
class Memoryless(SpeedPredictor):
    """Expects the next iteration to be like the last one.

    Source: [LBBSP] Sec. 3.2.2, Table 3.
    """

    def predict(self, history: SpeedHistory) -> FloatArray:
        return history.speeds[:, -1]


def _appended(window: FloatArray, newest: Sequence[float]) -> FloatArray:
    """The window with one more column; without its oldest one if it was full."""
    kept = window[:, -(HISTORY_ITERATIONS - 1) :]
    return np.column_stack([kept, np.array(newest, np.float64)])


def _number(share: float | None) -> float:
    return np.nan if share is None else share


def positive_speeds(predicted: FloatArray, history: SpeedHistory) -> FloatArray:
    """Predictions that a split can be based on, shape (num_workers,).

    Predictions are limited to between half the lowest and twice the highest speed remembered, so a wrong
    model cannot starve a worker or give it everything. A worker without a speed gets the mean of the others.
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

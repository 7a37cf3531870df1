"""Record what the workers of a group did, as rows that models are fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hpcbal.errors import PolicyError
from hpcbal.policies.batching.speed import SpeedHistory
from hpcbal.policies.batching.task import Observation
from hpcbal.policies.batching.time_curves import FloatArray

MAX_ITERATIONS = 4000  # per worker: as floats, about 100 kB


class SpeedRecording:
    """The last iterations of a group, newest last; the oldest beyond `max_iterations` are dropped.

    Not locked: record in one thread, and pass `snapshot()` to the thread that fits.

    Args:
        num_workers: workers of the group, >= 1.
        max_iterations: >= 1.

    Raises: PolicyError: if an argument is out of range.
    """

    def __init__(self, num_workers: int, max_iterations: int = MAX_ITERATIONS) -> None:
        if num_workers < 1 or max_iterations < 1:
            raise PolicyError(
                f"recording of {num_workers} workers over {max_iterations} iterations; allowed: 1 or more"
            )
        self._max_iterations = max_iterations
        # Twice the needed length, so that whole columns move only once in `max_iterations`.
        self._columns = np.full((3, num_workers, 2 * max_iterations), np.nan)
        self._end = 0
        self.num_recorded = 0

    def add(self, observations: Sequence[Observation]) -> None:
        """Record one iteration; a worker without samples keeps its last speed.

        Raises: PolicyError: unless there is one observation per worker.
        """
        if len(observations) != self._columns.shape[1]:
            raise PolicyError(
                f"got {len(observations)} observations of {self._columns.shape[1]} workers; "
                "give one per worker"
            )
        newest = self._window(1).with_observations(observations)
        if self._end == self._columns.shape[2]:
            self._columns[:, :, : self._max_iterations] = self._columns[:, :, self._max_iterations :]
            self._end = self._max_iterations
        for row, values in zip(self._columns, (newest.speeds, newest.cpu, newest.memory), strict=True):
            row[:, self._end] = values[:, -1]
        self._end += 1
        self.num_recorded += 1

    def snapshot(self) -> SpeedHistory:
        """A copy of the recording."""
        return self._window(self._max_iterations)

    def _window(self, num_iterations: int) -> SpeedHistory:
        part = self._columns[:, :, max(0, self._end - num_iterations) : self._end].copy()
        return SpeedHistory(part[0], part[1], part[2])


# Every fifth stretch of this many iterations is held out: single iterations would be too similar to their
# neighbours, and the newest ones may all be of one kind.
HELD_OUT_STRETCH = 20
HELD_OUT_EVERY = 5
LEAST_ROWS = 40


@dataclass(frozen=True, slots=True, eq=False)
class Scales:
    """The scales of inputs and targets.

    Attributes:
        input_mean, input_scale: shape (num_workers, num_inputs).
        target_mean, target_scale: shape (num_workers,); the mean is NaN for a worker with too few rows.
    """

    input_mean: FloatArray
    input_scale: FloatArray
    target_mean: FloatArray
    target_scale: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Inputs of the workers' networks, and their targets; row k is the same iteration for all workers.

    Attributes:
        inputs: shape (n, num_workers, num_inputs).
        targets: shape (n, num_workers).
        weights: shape (n, num_workers); 0 where something was not measured; inputs and target are 0 there.
    """

    inputs: FloatArray
    targets: FloatArray
    weights: FloatArray

    @classmethod
    def of(cls, inputs: FloatArray, targets: FloatArray) -> Rows:
        """Make rows; gaps are given as NaN."""
        whole = np.isfinite(inputs).all(axis=2) & np.isfinite(targets)
        return cls(
            np.where(whole[..., None], inputs, 0.0), np.where(whole, targets, 0.0), whole.astype(float)
        )

    @property
    def num_workers(self) -> int:
        return int(self.targets.shape[1])

    def scales(self, previous: Scales | None) -> Scales:
        """Means and deviations of the complete rows; from `previous` for workers that it knows.

        A model that starts from earlier weights must get its inputs on the same scale as then.
        """
        enough = self.weights.sum(axis=0) >= LEAST_ROWS
        input_mean, input_scale = _moments(self.inputs, self.weights[..., None])
        target_mean, target_scale = _moments(self.targets, self.weights)
        scales = Scales(input_mean, input_scale, np.where(enough, target_mean, np.nan), target_scale)
        if previous is None:
            return scales
        known = enough & np.isfinite(previous.target_mean)
        return Scales(
            np.where(known[:, None], previous.input_mean, scales.input_mean),
            np.where(known[:, None], previous.input_scale, scales.input_scale),
            np.where(known, previous.target_mean, scales.target_mean),
            np.where(known, previous.target_scale, scales.target_scale),
        )

    def standardised(self, scales: Scales) -> Rows:
        """The rows in units of `scales`; workers with too few rows get weight 0."""
        known = np.isfinite(scales.target_mean)
        targets = (self.targets - np.where(known, scales.target_mean, 0.0)) / scales.target_scale
        inputs = (self.inputs - scales.input_mean) / scales.input_scale
        weights = self.weights * known
        return Rows(inputs * weights[..., None], targets * weights, weights)

    def where(self, chosen: npt.NDArray[np.bool_]) -> Rows:
        """Some of the rows."""
        return Rows(self.inputs[chosen], self.targets[chosen], self.weights[chosen])

    def split(self) -> tuple[Rows, Rows]:
        """Rows to fit to, and rows held out; in both, each worker's weights sum to the number of rows."""
        number = np.arange(len(self.targets))
        held_out = number // HELD_OUT_STRETCH % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
        seen = self.weights.sum(axis=0) > 0
        if not (self.weights[held_out].sum(axis=0)[seen] > 0).all():  # too few rows, or all of them are gaps
            held_out = number % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
        return self.where(~held_out)._balanced(), self.where(held_out)._balanced()

    def _balanced(self) -> Rows:
        totals = self.weights.sum(axis=0)
        return replace(self, weights=self.weights * (len(self.targets) / np.where(totals > 0, totals, 1.0)))


def _moments(values: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Weighted means and standard deviations along the first axis; a deviation is 1 if nothing varies."""
    total = np.maximum(weights.sum(axis=0), 1.0)
    mean = (values * weights).sum(axis=0) / total
    spread = np.sqrt((np.square(values - mean) * weights).sum(axis=0) / total)
    return mean, np.where(spread > 1e-9 * np.maximum(np.abs(mean), 1e-9), spread, 1.0)

"""Turn a recording into what networks are fitted to: standardised rows of all workers, some held out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hpcbal.policies.batching.curves import FloatArray

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
    """What the workers' networks see, and what followed; row k is the same iteration for all workers.

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

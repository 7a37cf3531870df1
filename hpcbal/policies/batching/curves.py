"""Processing time of a batch on each worker: a floor while the worker is not saturated, then a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcbal.errors import PolicyError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class TimeCurves:
    """Batch processing times of a group's workers, t_i(x) = max(floor_i, launch_i + slope_i * x).

    An accelerator that x samples do not saturate takes as long as with fewer samples (the floor). Each batch
    has a launch cost that does not depend on its size. Communication that is not hidden adds to both. A CPU
    worker has floor and launch 0: t = x / v.

    Attributes:
        floor_s: seconds, shape (num_workers,), finite and >= 0.
        launch_s: seconds, shape (num_workers,), finite; may be negative if the floor hides the launch.
        slope_s: seconds per sample, shape (num_workers,), finite and >= 0.

    Raises: PolicyError: shapes differ, or a value is out of range.
    Source: [LBBSP] Sec. 3.2.1 and Sec. 3.3.1, Fig. 1 and 4.
    """

    floor_s: FloatArray
    launch_s: FloatArray
    slope_s: FloatArray

    def __post_init__(self) -> None:
        arrays = (self.floor_s, self.launch_s, self.slope_s)
        same = all(array.ndim == 1 and array.shape == self.floor_s.shape for array in arrays)
        if not same or not all(np.isfinite(array).all() for array in arrays):
            raise PolicyError("curves of workers: got values that are not finite, or unequal lengths")
        if (self.floor_s < 0).any() or (self.slope_s < 0).any():
            raise PolicyError("curves of workers: got a negative floor or slope; allowed: 0 or more")

    @classmethod
    def of(cls, rows: Sequence[tuple[float, float, float]]) -> TimeCurves:
        """Curves from one (floor_s, launch_s, slope_s) per worker."""
        columns = np.array(rows, np.float64).reshape(-1, 3).T
        return cls(columns[0], columns[1], columns[2])

    @property
    def num_workers(self) -> int:
        return int(self.floor_s.size)

    def seconds(self, batch_sizes: npt.ArrayLike) -> FloatArray:
        """Time of each worker for its batch, shape (num_workers,); for 0 samples the floor or the launch."""
        sizes = np.asarray(batch_sizes, np.float64)
        return np.maximum(self.floor_s, self.launch_s + self.slope_s * sizes)

    def makespan(self, batch_sizes: npt.ArrayLike) -> float:
        """Seconds until the last worker finishes."""
        return float(self.seconds(batch_sizes).max())

    def within(self, deadline_s: float, minima: IntArray, maxima: IntArray) -> IntArray:
        """The most samples that each worker finishes in `deadline_s`, shape (num_workers,).

        Never below the minimum, even for a worker that is too slow to finish it in time.
        """
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            real = np.floor((deadline_s - self.launch_s) / self.slope_s)
        level = np.where(self.launch_s <= deadline_s, np.inf, -np.inf)
        real = np.where(self.slope_s > 0, real, level)
        real = np.where(self.floor_s <= deadline_s, real, -np.inf)
        sizes = np.clip(real, minima, maxima).astype(np.int64)
        # The quotient is rounded: correct it to what `seconds` says.
        while (more := (sizes < maxima) & (self.seconds(sizes + 1) <= deadline_s)).any():
            sizes += more
        while (fewer := (sizes > minima) & (self.seconds(sizes) > deadline_s)).any():
            sizes -= fewer
        return sizes

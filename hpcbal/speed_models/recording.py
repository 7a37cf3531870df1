"""Record what the workers of a group did, to fit models of their speed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcbal.errors import PolicyError
from hpcbal.policies.batching.speed import SpeedHistory
from hpcbal.policies.batching.task import Observation

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

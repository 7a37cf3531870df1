"""Draw the samples of a step from sorted parts as CHRONICA does."""

from __future__ import annotations

import numpy as np

from hpcbal.policies.batching.time_curves import FloatArray, IntArray
from hpcbal.policies.samples._drawing import draw

MEAN_SIZE = 45.0
LEAST_SIZE = 1.0


def generated_sizes(num_samples: int, dif: float, seed: int) -> FloatArray:
    """Sizes from a normal distribution around `MEAN_SIZE`, kept positive, with that mean.

    Numbers below `LEAST_SIZE` are raised to it; then all are scaled back to the mean. So the measured
    imbalance is below `dif` where many are raised: about 45 for 64.

    Args:
        num_samples: >= 1.
        dif: standard deviation of the normal distribution, >= 0.
        seed: >= 0.

    Source: [CHRONICA] Sec. VI-A. The paper does not say how sizes stay positive.
    """
    random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed])))
    sizes = np.maximum(random.normal(MEAN_SIZE, dif, num_samples), LEAST_SIZE)
    return sizes * float(MEAN_SIZE / sizes.mean())


class SortedParts:
    """The samples of each worker that are left, in ascending order of size.

    They are arrays that never move, with links past the drawn ones.

    Args:
        sizes: of the samples by worker, in ascending order for each, shape (num_samples,).
        ids: of these samples.
        bounds: worker j has the samples bounds[j] to bounds[j + 1] - 1, shape (num_workers + 1,).
    """

    def __init__(self, sizes: FloatArray, ids: IntArray, bounds: IntArray) -> None:
        self._ids = ids
        self._sizes = np.ascontiguousarray(sizes, np.float64)
        self._bounds = np.ascontiguousarray(bounds, np.int64)
        self._below = np.arange(len(ids), dtype=np.int32)
        self._first, self._left = self._bounds[:-1].copy(), np.diff(self._bounds)

    def nth(self, number: int) -> tuple[int, int]:
        """Worker and place of a sample: the `number`-th that is left, counted over all workers in turn."""
        ends = np.cumsum(self._left)
        worker = int(np.searchsorted(ends, number, side="right"))
        first, last = int(self._first[worker]), int(self._bounds[worker + 1])
        left = np.flatnonzero(self._below[first:last] == np.arange(first, last))
        return worker, first + int(left[number - int(ends[worker] - self._left[worker])])

    def draw(
        self, worker: int, place: int, slopes: FloatArray, launches: FloatArray, num_samples: int
    ) -> list[IntArray]:
        """Take out the samples of a step.

        The first is the given one. Each other one goes to the worker with the least estimated time. It is its
        largest with which it does not finish later than the slowest worker so far, or else its smallest.

        Args:
            worker, place: the first sample, from `nth`.
            slopes, launches: seconds per size, and of a step, shape (num_workers,).
            num_samples: of the step, with the first; 1 to the number of samples that are left.

        Returns: ids of the samples that each worker draws.
        """
        taken, ends = np.empty(num_samples, np.int64), np.empty(len(self._left), np.int64)
        draw(
            self._sizes,
            self._below,
            self._bounds,
            self._first,
            self._left,
            np.ascontiguousarray(slopes, np.float64),
            np.ascontiguousarray(launches, np.float64),
            worker,
            place,
            taken,
            ends,
        )
        ids, stops = self._ids[taken], ends.tolist()
        return [ids[start:stop] for start, stop in zip([0, *stops[:-1]], stops, strict=True)]

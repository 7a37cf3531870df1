"""CHRONICA: choose the samples of each step from the workers' parts, and level the parts after an epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcbal.errors import PolicyError
from hpcbal.policies.batching.time_curves import FloatArray, IntArray
from hpcbal.policies.samples._drawing import draw
from hpcbal.policies.samples.task import checked_sizes

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


@dataclass(frozen=True, slots=True, eq=False)
class Indicators:
    """Performance indicators of the workers: a step with work x takes `seconds_per_size` * x + `launch_s`.

    Attributes:
        seconds_per_size: a of [CHRONICA] Eq. 6, finite and > 0, shape (num_workers,).
        launch_s: b, finite and >= 0, shape (num_workers,).

    Raises: PolicyError: a value is out of range, or the lengths differ.
    """

    seconds_per_size: FloatArray
    launch_s: FloatArray

    def __post_init__(self) -> None:
        a, b = self.seconds_per_size, self.launch_s
        if a.shape != b.shape or a.ndim != 1 or not len(a):
            raise PolicyError(
                f"indicators of workers: got shapes {a.shape} and {b.shape}, allowed: (n,) twice"
            )
        if not (np.isfinite(a).all() and np.isfinite(b).all() and (a > 0).all() and (b >= 0).all()):
            raise PolicyError(
                f"indicators of workers: got {a.tolist()} and {b.tolist()}, allowed: above 0 seconds per "
                "size, 0 or more seconds of launch"
            )

    @property
    def num_workers(self) -> int:
        return len(self.launch_s)


class EpochQueues:
    """The samples that each worker still has to draw in an epoch, and the data scheduler for them.

    Reading of [CHRONICA] Alg. 2, where the pseudo-code is open:

    - The "batch size" is the number of samples of the global batch. Each pass of the loop picks one of them.
    - A worker draws from its own part only.
    - FFD takes the worker with the least estimated time. It draws its largest sample with which it does not
      finish later than the slowest worker so far; if it has none, its smallest sample. This is what Fig. 5
      shows: 129 after 156 (171 does not fit), and the smallest sample where nothing fits.
    - The estimated time of a share is b + a * (sum of sizes): b is paid once for a step, not for a sample.
    - A worker whose part is empty draws no more, and the other workers fill the step.

    Args:
        sizes: of all samples, shape (num_samples,), > 0.
        owner: worker of each sample, int, shape (num_samples,); negative: unusable, or drawn already.
        num_workers: >= 1.
        seed: numbers that make the random pivots, together with the number of samples that are left: the
            run's seed, the epoch. So queues of what is left of an epoch draw as those of the whole epoch do.

    Source: [CHRONICA] Sec. V-B, Alg. 2.
    """

    def __init__(
        self,
        sizes: FloatArray,
        owner: IntArray,
        num_workers: int,
        seed: Sequence[int],
    ) -> None:
        sizes = checked_sizes(sizes, len(owner))
        order = np.lexsort((sizes, owner))
        bounds = np.searchsorted(owner[order], np.arange(num_workers + 1))
        order = order[bounds[0] : bounds[-1]]
        self._parts = SortedParts(sizes[order], order, bounds - bounds[0])
        self._num_workers = num_workers
        self._seed = list(seed)
        self.num_left = len(order)

    def draw(self, indicators: Indicators, batch_size: int) -> list[IntArray]:
        """The samples of the next step by worker; together `batch_size`, or all that are left.

        Args:
            indicators: of the workers.
            batch_size: >= 1.
        """
        if not self.num_left:
            return [np.zeros(0, np.int64) for _ in range(self._num_workers)]
        worker, place = self._parts.nth(self._random_number())
        num_samples = min(max(batch_size, 1), self.num_left)
        self.num_left -= num_samples
        return self._parts.draw(worker, place, indicators.seconds_per_size, indicators.launch_s, num_samples)

    def _random_number(self) -> int:
        """The number of a random sample among all that are left: the pivot."""
        words = np.random.SeedSequence([*self._seed, self.num_left])
        return int(np.random.Generator(np.random.PCG64(words)).integers(self.num_left))


def shuffle(sizes: FloatArray, owner: IntArray, indicators: Indicators, num_steps: int = 0) -> IntArray:
    """Move samples between parts, so that the next epoch takes all workers equally long.

    Reading of [CHRONICA] Alg. 3, where the pseudo-code is open:

    - The estimated time of a part is a * (sum of sizes) + b * (steps of an epoch), because b is paid in every
      step. As written, b is paid for every sample. Where all shares have one size, only this sum is known.
    - The mean is that of the parts' times, as written. On unlike workers it is above the best common time.
    - `search` finds the largest sample that does not bring its worker below the mean. The loop ends where
      there is none, so a part stays above the mean by less than its smallest sample. As written, it would end
      below the mean.
    - FFD redistributes the largest sample first, to the worker that finishes its part first with it.

    Args:
        sizes: of all samples, shape (num_samples,), > 0.
        owner: worker of each sample, int, shape (num_samples,); negative: unusable.
        indicators: of the workers.
        num_steps: steps of an epoch, >= 0.

    Returns: the new owners; only the overflow moves.
    Source: [CHRONICA] Sec. V-C, Alg. 3.
    """
    slopes = indicators.seconds_per_size
    used = owner >= 0
    work = np.bincount(owner[used], sizes[used], indicators.num_workers)
    times_s = slopes * work + num_steps * indicators.launch_s
    mean_s = math.fsum(times_s.tolist()) / indicators.num_workers  # exact sums: all ranks decide alike
    new_owner, overflow = owner.copy(), []
    for worker in np.flatnonzero(times_s > mean_s):
        own = np.flatnonzero(owner == worker)
        taken = _overflow(sizes[own], float(times_s[worker] - mean_s) / float(slopes[worker]))
        overflow.append(own[taken])
        times_s[worker] -= slopes[worker] * math.fsum(sizes[own[taken]].tolist())
    storage = np.concatenate([np.zeros(0, np.int64), *overflow])
    storage = storage[np.argsort(-sizes[storage], kind="stable")]
    for sample in storage.tolist():
        worker = int(np.argmin(times_s + slopes * sizes[sample]))
        new_owner[sample] = worker
        times_s[worker] += slopes[worker] * sizes[sample]
    return new_owner


def _overflow(sizes: FloatArray, excess: float) -> IntArray:
    """Places of the samples that a part gives away: the largest that fits into what is left, again and again.

    In descending order each sample is taken if it fits, because what did not fit never fits later.

    Args:
        sizes: of the part, any order.
        excess: work above the mean, > 0.
    """
    order = np.argsort(-sizes, kind="stable")
    taken = []
    for place in order.tolist():
        if sizes[place] <= excess:
            taken.append(place)
            excess -= float(sizes[place])
    return np.array(taken, np.int64)

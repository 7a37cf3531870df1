"""Split a global batch into whole samples so that the last worker finishes as early as possible."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hpcbal.errors import PolicyError
from hpcbal.policies.batching.task import BatchTask
from hpcbal.policies.batching.time_curves import FloatArray, IntArray, TimeCurves

_BISECTIONS = 200  # enough to bisect any interval of doubles that shares can span
_LEAST_WEIGHT = 1e-12  # of the largest weight; below it a worker's share of any batch is 0


def apportion(
    num_samples: int,
    weights: Sequence[float],
    minima: Sequence[int] | None = None,
    maxima: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Whole numbers in proportion to `weights`, within limits, with an exact sum.

    Shares beyond a limit are set to the limit, and the others share the rest in proportion. Then shares are
    cut to whole samples. Leftover samples go to the largest remainders; ties go to the larger weight, then to
    the lower index. So with equal limits a larger weight never gets fewer samples.

    Args:
        num_samples: samples to share out, >= 0.
        weights: one per worker, finite and >= 0; all zero counts as all equal.
        minima: fewest samples of each worker, >= 0; None: 0.
        maxima: most samples of each worker; None: no limit.

    Returns: one count per worker, with sum `num_samples`.
    Raises: PolicyError: a weight is out of range, or the limits cannot be kept.
    Source: [LBBSP] Alg. 1, lines 5 and 6. The paper does not say how it rounds.
    """
    count = len(weights)
    lows = [0] * count if minima is None else list(minima)
    highs = [num_samples] * count if maxima is None else [min(most, num_samples) for most in maxima]
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise PolicyError(f"weights: got {list(weights)}, allowed: finite and not negative")
    fits = all(low <= high for low, high in zip(lows, highs, strict=True))
    if not (count and fits and sum(lows) <= num_samples <= sum(highs)):
        raise PolicyError(
            f"cannot share {num_samples} samples out to {count} workers with minima {lows} and maxima {highs}"
        )
    largest = max(weights)
    # Divided by the largest weight, because sums and products of huge doubles would overflow.
    scaled = [weight / largest for weight in weights] if largest > 0 else [1.0] * count
    scaled = [weight if weight >= _LEAST_WEIGHT else 0.0 for weight in scaled]
    shares = _limited_shares(num_samples, scaled, lows, highs)
    counts = [
        min(max(math.floor(share), low), high) for share, low, high in zip(shares, lows, highs, strict=True)
    ]
    order = sorted(range(count), key=lambda i: (counts[i] - shares[i], -weights[i], i))
    _hand_out(num_samples - sum(counts), counts, order, highs, 1)
    _hand_out(sum(counts) - num_samples, counts, order[::-1], lows, -1)
    return tuple(counts)


def scale_shares(num_samples: int, batch_sizes: Sequence[int]) -> tuple[int, ...]:
    """Shares of a step with fewer samples than the global batch, in the proportions of a full step.

    Args:
        num_samples: of the step, 0 <= num_samples <= sum(batch_sizes).
        batch_sizes: shares of a full step, as decided by a policy.

    Returns: counts that sum to `num_samples`, none above its full size.
    Raises: PolicyError: the step holds more samples than a full one.
    """
    return apportion(num_samples, batch_sizes, maxima=batch_sizes)


def _limited_shares(
    num_samples: int, weights: Sequence[float], lows: Sequence[int], highs: Sequence[int]
) -> list[float]:
    """Real shares clip(level * weight, low, high) with the level at which they sum to `num_samples`.

    Found by bisection, because the sum grows with the level. Workers of weight 0 stay at their minimum. If
    the maxima of the others leave samples over, rounding hands these out.
    """
    least = min((weight for weight in weights if weight > 0), default=1.0)
    low_level, high_level = 0.0, 2.0 * num_samples / least

    def shares_at(level: float) -> list[float]:
        return [
            min(max(level * weight, low), high)
            for weight, low, high in zip(weights, lows, highs, strict=True)
        ]

    free = sum(weights)
    exact = num_samples / free  # if no limit applies, exact up to rounding
    if all(low <= exact * weight <= high for weight, low, high in zip(weights, lows, highs, strict=True)):
        return shares_at(exact)
    for _ in range(_BISECTIONS):
        level = (low_level + high_level) / 2
        if level in (low_level, high_level):
            break
        if math.fsum(shares_at(level)) < num_samples:
            low_level = level
        else:
            high_level = level
    return shares_at(high_level)


def _hand_out(number: int, counts: list[int], order: Sequence[int], bounds: Sequence[int], sign: int) -> None:
    """Add `sign` to `number` counts in `order`, repeatedly from its start, and move none beyond its bound."""
    while number > 0:
        open_ = [i for i in order if counts[i] != bounds[i]]
        # Several turns at once: many samples may be left, and few workers can take them.
        turns = min(min(abs(bounds[i] - counts[i]) for i in open_), number // len(open_))
        for i in open_:
            counts[i] += sign * turns
        number -= turns * len(open_)
        if turns == 0:
            for i in open_[:number]:
                counts[i] += sign
            return


_TIME_BISECTIONS = 30
"""Bisections that bring a deadline to within 1e-9 of its range."""


def split_min_max(curves: TimeCurves, task: BatchTask) -> tuple[int, ...]:
    """The split with the least makespan, exact for whole samples under the workers' limits.

    The least makespan T is one of the times t_i(x) and is found by bisection: a deadline can be kept if the
    workers finish enough samples by then. Each probe moves its bound to the next time that some worker
    actually takes, so the search ends at T itself and not near it.

    Several splits may have the makespan T. Workers that cannot finish before T take as many samples as they
    can within T; then the makespan of the other workers is minimised, and so on. `apportion` breaks the
    remaining ties.

    Args:
        curves: of the task's workers, in its order.

    Returns: samples of each worker.
    Raises: PolicyError: the curves are not those of the task's workers.
    Source: [LBBSP] Eq. 3. The paper solves it in real numbers for lines through 0 (Alg. 1) and approaches it
        step by step for other curves (Alg. 2).
    """
    if curves.num_workers != task.num_workers:
        raise PolicyError(f"got the curves of {curves.num_workers} workers for {task.num_workers}")
    minima = np.array(task.minima, np.int64)
    maxima = np.array(task.maxima, np.int64)
    sizes = minima.copy()
    open_ = np.arange(task.num_workers)
    missing = task.num_samples
    while open_.size:
        part = TimeCurves(curves.floor_s[open_], curves.launch_s[open_], curves.slope_s[open_])
        least, most = minima[open_], maxima[open_]
        makespan_s = _least_makespan(part, least, most, missing)
        at = part.within(makespan_s, least, most)
        late = part.seconds(least) >= makespan_s  # even their minimum takes until then
        if not late.any():
            sooner = part.within(float(np.nextafter(makespan_s, -np.inf)), least, most)
            sizes[open_] = sooner + _fill(at - sooner, missing - int(sooner.sum()))
            break
        room = at[late] - least[late]
        taken = least[late] + _fill(room, min(int(room.sum()), missing - int(least.sum())))
        sizes[open_[late]] = taken
        missing -= int(taken.sum())
        open_ = open_[~late]
    return tuple(int(size) for size in sizes)


def level_work(curves: TimeCurves, task: BatchTask) -> FloatArray:
    """The split of the task's work in real numbers with which all workers finish at the same time.

    A worker with a floor above that time gets what it finishes within its floor, and a worker at a limit gets
    this limit.

    Args:
        curves: of the task's workers, in its order.

    Returns: work of each worker, shape (num_workers,), with the sum `task.num_samples`.
    Source: [LBBSP] Eq. 3 in real numbers.
    """
    minima, maxima = np.array(task.minima, np.float64), np.array(task.maxima, np.float64)
    slopes = np.maximum(curves.slope_s, 1e-300)
    free = np.clip((curves.floor_s - curves.launch_s) / slopes, minima, maxima)
    low_s, high_s = 0.0, curves.makespan(maxima)
    for _ in range(_TIME_BISECTIONS):
        deadline_s = (low_s + high_s) / 2
        work = np.clip((deadline_s - curves.launch_s) / slopes, minima, maxima)
        if float(np.maximum(work, free).sum()) < task.num_samples:
            low_s = deadline_s
        else:
            high_s = deadline_s
    work = np.maximum(np.clip((high_s - curves.launch_s) / slopes, minima, maxima), free)
    total: float = work.sum()
    return work * (task.num_samples / total) if total > 0 else np.ones(task.num_workers)


def _fill(room: IntArray, number: int) -> IntArray:
    """Spread `number` samples over workers in proportion to their `room`."""
    return np.array(apportion(number, room.tolist(), maxima=room.tolist()), np.int64)


def _least_makespan(curves: TimeCurves, minima: IntArray, maxima: IntArray, num_samples: int) -> float:
    """The least time by which the workers finish `num_samples` samples: the time of one of them."""
    low_s = curves.makespan(minima)  # no split finishes earlier
    high_s = max(low_s, curves.makespan(maxima))
    while low_s < high_s:
        middle_s = low_s + (high_s - low_s) / 2
        deadline_s = middle_s if middle_s < high_s else low_s  # it may round to either neighbour
        sizes = curves.within(deadline_s, minima, maxima)
        if int(sizes.sum()) >= num_samples:
            high_s = max(low_s, curves.makespan(sizes))
        else:
            more = curves.seconds(np.minimum(sizes + 1, maxima))
            low_s = float(more[sizes < maxima].min())
    return low_s

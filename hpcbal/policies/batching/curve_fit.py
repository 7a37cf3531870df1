"""Fit every worker's time curve to its iterations: the end of the floor, and the line beyond it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcbal.policies.batching.curves import FloatArray, TimeCurves

# No slope is below this share of time / batch: a worker with a flat curve would get the whole batch.
LEAST_SLOPE_SHARE = 0.03
# A floor adds two parameters and must reduce the squared standardised errors by this much.
FLOOR_PENALTY = 8.0
_TINY = 1e-100  # a divisor; neither it nor its square is 0


@dataclass(frozen=True, slots=True, eq=False)
class CurveFit:
    """Curves and their uncertainty.

    Attributes:
        curves: of all workers; zeros for a worker without iterations.
        level_variance_s2, slope_variance, centre: variances of the line's level and of its slope, which are
            independent at the batch `centre`; shape (num_workers,).
    """

    curves: TimeCurves
    level_variance_s2: FloatArray
    slope_variance: FloatArray
    centre: FloatArray

    def doubt_s(self, sizes: FloatArray) -> FloatArray:
        """Standard deviation of the line at a batch of each worker, shape (num_workers,)."""
        variance: FloatArray = self.level_variance_s2 + self.slope_variance * (sizes - self.centre) ** 2
        return np.sqrt(variance)


def fit_curves(
    sizes: FloatArray,
    times_s: FloatArray,
    weights: FloatArray,
    slope_s: FloatArray,
    slope_doubt_s: FloatArray,
    noise: FloatArray,
) -> CurveFit:
    """Fit curves by weighted least squares of relative errors; the expected slope counts as evidence.

    Iterations are sorted by batch size. For each place where the floor may end (before the first iteration:
    no floor), the floor is the mean of the times on its left, and the line is fitted to those on its right.
    Then the whole curve is compared with all times, and the place with the smallest error is used.

    Args:
        sizes, times_s, weights: of iterations in any order, shape (num_workers, n); weight 0: ignored.
        slope_s, slope_doubt_s: expected slope and its standard deviation, > 0 if a worker has iterations;
            shape (num_workers,).
        noise: relative standard deviation of a time, > 0, shape (num_workers,).

    Returns: the fit; launch >= 0 and slope > 0 for every worker with iterations.
    """
    x, t, q = _by_size(sizes, times_s, np.where(weights > 0, weights, 0.0), noise)
    total = np.maximum(q.sum(axis=1), _TINY)
    middle = (q * x).sum(axis=1) / total
    d = x - middle[:, None]  # relative to the middle, so sums of squares keep their precision

    prior = np.where(slope_doubt_s > 0, 1.0 / np.maximum(slope_doubt_s, _TINY) ** 2, 0.0)[:, None]
    expected = slope_s[:, None]
    s, sd, sdd, st, sdt = (_from_each_on(part) for part in (q, q * d, q * d * d, q * t, q * d * t))
    determinant = np.maximum(s * (sdd + prior) - sd * sd, _TINY)
    slope = (s * (sdt + prior * expected) - sd * st) / determinant
    safe = np.maximum(s, _TINY)
    mean_x, mean_t = middle[:, None] + sd / safe, st / safe  # of the iterations on the line
    per_sample = mean_t / np.maximum(mean_x, _TINY)
    slope = np.clip(slope, LEAST_SLOPE_SHARE * per_sample, per_sample)  # the launch is not negative
    launch = mean_t - slope * mean_x
    floor = np.zeros_like(launch)
    before_q, before_qt = np.cumsum(q, axis=1)[:, :-1], np.cumsum(q * t, axis=1)[:, :-1]
    floor[:, 1:] = before_qt / np.maximum(before_q, _TINY)

    curve = np.maximum(floor[:, :, None], launch[:, :, None] + slope[:, :, None] * x[:, None, :])
    cost = (q[:, None, :] * (t[:, None, :] - curve) ** 2).sum(axis=2) + prior * (slope - expected) ** 2
    cost[:, 1:] += FLOOR_PENALTY
    # A floor ends between two different batches and has some on its right.
    cost[:, 1:][(x[:, 1:] <= x[:, :-1]) | (s[:, 1:] <= 0)] = np.inf

    best = np.argmin(cost, axis=1)[:, None]
    seen = (q > 0).any(axis=1)

    def at_best(values: FloatArray) -> FloatArray:
        return np.where(seen, np.take_along_axis(values, best, axis=1)[:, 0], 0.0)

    spread = sdd - sd * sd / safe  # of the batches on the line around their mean
    return CurveFit(
        TimeCurves(at_best(floor), at_best(launch), at_best(slope)),
        level_variance_s2=at_best(1.0 / safe),
        slope_variance=at_best(1.0 / np.maximum(spread + prior, _TINY)),
        centre=at_best(mean_x),
    )


def _by_size(
    sizes: FloatArray, times_s: FloatArray, weights: FloatArray, noise: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Batch sizes in ascending order, the mean time of each, and the inverse variance of that mean.

    A settled worker has had few sizes, and the fit tries one end of the floor for each size, so grouping by
    size saves time. Returned arrays have the shape (num_workers, most sizes of a worker). Inverse variance 0
    marks an empty place at a row's end.
    """
    num_workers, width = sizes.shape
    order = np.argsort(np.where(weights > 0, sizes, np.inf), axis=1, kind="stable")
    x, t, w = (np.take_along_axis(array, order, axis=1) for array in (sizes, times_s, weights))
    t = np.where(w > 0, t, 1.0)
    q = w / (noise[:, None] * t) ** 2
    place = np.zeros((num_workers, width), np.int64)
    np.cumsum((x[:, 1:] != x[:, :-1]) & (w[:, 1:] > 0), axis=1, out=place[:, 1:])
    most = int(place.max(initial=0)) + 1
    flat = (np.arange(num_workers)[:, None] * most + place).ravel()

    def summed(values: FloatArray) -> FloatArray:
        added: FloatArray = np.bincount(flat, values.ravel(), num_workers * most).astype(np.float64)
        return added.reshape(num_workers, most)

    sums = summed(q)
    safe = np.maximum(sums, _TINY)
    return summed(q * x) / safe, np.where(sums > 0, summed(q * t) / safe, 1.0), sums


def _from_each_on(values: FloatArray) -> FloatArray:
    """Sums from each place to the end; same shape."""
    sums: FloatArray = np.cumsum(values[:, ::-1], axis=1)[:, ::-1]
    return sums

"""Processing time of a batch on each worker: a floor, then a line; fitted to noisy iterations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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


BoolArray = npt.NDArray[np.bool_]

# Iterations that are remembered, and the factor by which each older one weighs less. The level of a curve is
# then the mean of some 30 iterations, and noise of 3 % leaves an error of about 0.5 %.
WINDOW_ITERATIONS = 48
MEMORY_PER_ITERATION = 0.97
# Times are clipped to this range, so that doubles can hold their squares.
TIMES_S = (1e-9, 1e9)
# Relative noise of one time before any is known. It is then learnt slowly and never falls below the minimum.
FIRST_NOISE = 0.03
LEAST_NOISE = 0.005
NOISE_RATE = 0.05
# A worker whose times contain no information about the slope (all of equal batches) is assumed to keep its
# slope within this share. For an unknown worker, half of its first time is assumed to grow with the batch.
SLOPE_DRIFT = 0.3
FIRST_SLOPE_SHARE = 0.5
FIRST_SLOPE_DOUBT = 1.0
SHIFTED_SLOPE_DOUBT = 0.5
# Sums of standardised errors above 1 (CUSUM): two large errors in a row, or about five of 2 sigma, count as a
# shift of the level. At 3 % noise a worker causes one false alarm in 100,000 iterations.
ERROR_LIMIT = 4.0
ERROR_DRIFT = 1.0
SHIFT_AT = 5.0
# Errors above this many sigma weigh less (Huber): a spike is not a shift of the level.
HUBER_SIGMA = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class CurveMemory:
    """Last iterations of a group's workers, and estimates; arrays have the shape (num_workers, ...).

    Attributes:
        sizes, times_s, weights: of the last iterations, newest last, shape (num_workers, WINDOW_ITERATIONS);
            weight 0 marks an empty or forgotten place.
        slope_s: slope that a worker is assumed to have without further evidence; 0 before its first time.
        slope_doubt: standard deviation of that slope, as a share of it.
        noise: relative standard deviation of a single time.
        drift_up, drift_down: CUSUM of errors, >= 0.
        run_up, run_down: iterations since the sum was last 0.
        fitted: the curves that best explain the remembered iterations; zeros for a worker never seen.
    """

    sizes: FloatArray
    times_s: FloatArray
    weights: FloatArray
    slope_s: FloatArray
    slope_doubt: FloatArray
    noise: FloatArray
    drift_up: FloatArray
    drift_down: FloatArray
    run_up: IntArray
    run_down: IntArray
    fitted: CurveFit

    @classmethod
    def empty(cls, num_workers: int) -> CurveMemory:
        """The memory of workers that were never seen."""
        window, each = np.zeros((num_workers, WINDOW_ITERATIONS)), np.zeros(num_workers)
        counts = np.zeros(num_workers, np.int64)
        return cls(
            sizes=window,
            times_s=window,
            weights=window,
            slope_s=each,
            slope_doubt=np.full(num_workers, FIRST_SLOPE_DOUBT),
            noise=np.full(num_workers, FIRST_NOISE),
            drift_up=each,
            drift_down=each,
            run_up=counts,
            run_down=counts,
            fitted=CurveFit(TimeCurves(each, each, each), each, each, each),
        )

    @property
    def is_known(self) -> bool:
        """Whether every worker was seen at least once."""
        return bool((self.slope_s > 0).all())


def learn(memory: CurveMemory, sizes: FloatArray, times_s: FloatArray) -> CurveMemory:
    """The memory after one more iteration.

    Args:
        sizes: samples of each worker, shape (num_workers,); nothing is learnt about a worker with 0.
        times_s: processing times, shape (num_workers,), > 0 for workers with samples.
    """
    seen = sizes > 0
    times_s = np.clip(times_s, *TIMES_S)
    known = memory.slope_s > 0
    first = np.where(seen & ~known, FIRST_SLOPE_SHARE * times_s / np.maximum(sizes, 1.0), memory.slope_s)
    memory = replace(memory, slope_s=first)
    errors = _standard_errors(memory, sizes, times_s, seen & known)
    memory = _add_drift(memory, errors, seen)
    newest = np.where(seen, np.minimum(1.0, HUBER_SIGMA / np.maximum(np.abs(errors), 1e-9)), 0.0)
    older = memory.weights[:, 1:] * np.where(seen, MEMORY_PER_ITERATION, 1.0)[:, None]
    memory = replace(
        memory,
        sizes=_appended(memory.sizes, sizes, seen),
        times_s=_appended(memory.times_s, times_s, seen),
        weights=np.where(seen[:, None], np.column_stack([older, newest]), memory.weights),
    )
    memory = _forget_before_shifts(memory)
    fitted = fit_curves(
        memory.sizes,
        memory.times_s,
        memory.weights,
        memory.slope_s,
        memory.slope_s * memory.slope_doubt,
        memory.noise,
    )
    slope = np.maximum(fitted.curves.slope_s, 1e-100)
    doubt = np.clip(np.sqrt(fitted.slope_variance) / slope, SLOPE_DRIFT, memory.slope_doubt)
    now_known = (memory.weights > 0).any(axis=1)
    return replace(
        memory,
        slope_s=np.where(now_known, slope, memory.slope_s),
        slope_doubt=np.where(now_known, doubt, memory.slope_doubt),
        fitted=fitted,
    )


def _standard_errors(
    memory: CurveMemory, sizes: FloatArray, times_s: FloatArray, known: BoolArray
) -> FloatArray:
    """Standard deviations by which the new times exceed the expected ones; 0 for unknown workers."""
    fitted = memory.fitted
    expected = np.maximum(fitted.curves.seconds(sizes), 1e-100)
    doubt = np.hypot(memory.noise, fitted.doubt_s(sizes) / expected)
    return np.where(known, (times_s / expected - 1.0) / doubt, 0.0)


def _add_drift(memory: CurveMemory, errors: FloatArray, seen: BoolArray) -> CurveMemory:
    """The memory with the CUSUM updated by `errors`, and its noise moved a little towards theirs."""
    limited = np.clip(errors, -ERROR_LIMIT, ERROR_LIMIT)
    up = np.where(seen, np.maximum(0.0, memory.drift_up + limited - ERROR_DRIFT), memory.drift_up)
    down = np.where(seen, np.maximum(0.0, memory.drift_down - limited - ERROR_DRIFT), memory.drift_down)
    informative = seen & (errors != 0)
    # Errors beyond 3 sigma are spikes or shifts and contain little information about the noise.
    square = np.minimum(np.abs(errors), 3.0) ** 2 * memory.noise**2
    updated = (1 - NOISE_RATE) * memory.noise**2 + NOISE_RATE * square
    variance = np.where(informative, updated, memory.noise**2)
    return replace(
        memory,
        drift_up=up,
        drift_down=down,
        run_up=np.where(seen, np.where(up > 0, memory.run_up + 1, 0), memory.run_up),
        run_down=np.where(seen, np.where(down > 0, memory.run_down + 1, 0), memory.run_down),
        noise=np.maximum(np.sqrt(variance), LEAST_NOISE),
    )


def _appended(window: FloatArray, newest: FloatArray, seen: BoolArray) -> FloatArray:
    """The window with the newest iteration, for the workers that were seen."""
    return np.where(seen[:, None], np.column_stack([window[:, 1:], newest]), window)


def _forget_before_shifts(memory: CurveMemory) -> CurveMemory:
    """Drop the iterations before a shift of a worker's level, and trust its slope less."""
    up, down = memory.drift_up > SHIFT_AT, memory.drift_down > SHIFT_AT
    shifted = up | down
    if not shifted.any():
        return memory
    run = np.where(up, memory.run_up, memory.run_down)
    age = np.arange(WINDOW_ITERATIONS)[::-1]
    since = (age[None, :] < run[:, None]) & (memory.weights > 0)
    return replace(
        memory,
        weights=np.where(shifted[:, None], since.astype(np.float64), memory.weights),
        slope_doubt=np.where(shifted, SHIFTED_SLOPE_DOUBT, memory.slope_doubt),
        drift_up=np.where(shifted, 0.0, memory.drift_up),
        drift_down=np.where(shifted, 0.0, memory.drift_down),
        run_up=np.where(shifted, 0, memory.run_up),
        run_down=np.where(shifted, 0, memory.run_down),
    )

"""Learn every worker's time curve from its iterations, despite noise, spikes and level shifts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hpcbal.policies.batching.curve_fit import CurveFit, fit_curves
from hpcbal.policies.batching.curves import FloatArray, IntArray, TimeCurves

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
    """What is remembered about a group's workers; all arrays have the shape (num_workers, ...).

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

"""Learn every worker's time curve from its iterations, through noise, spikes and level shifts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hpcbal.policies.batching.curve_fit import CurveFit, fit_curves
from hpcbal.policies.batching.curves import FloatArray, IntArray, TimeCurves

BoolArray = npt.NDArray[np.bool_]

# Iterations that are remembered, and how much less each older one weighs: the level of a curve is the mean of
# some 30 iterations, so that noise of 3 % leaves an error of about 0.5 %.
WINDOW_ITERATIONS = 48
MEMORY_PER_ITERATION = 0.97
# No iteration is shorter or longer; keeps squares of times within what doubles can hold.
TIMES_S = (1e-9, 1e9)
# Relative noise of one time before any is known; it is then learnt, slowly, and never falls below the least.
FIRST_NOISE = 0.03
LEAST_NOISE = 0.005
NOISE_RATE = 0.05
# A worker whose times say nothing of the slope (all of equal batches) is taken to keep the one it had, give
# or take this share of it. Of an unknown worker: half of its first time grows with the batch.
SLOPE_DRIFT = 0.3
FIRST_SLOPE_SHARE = 0.5
FIRST_SLOPE_DOUBT = 1.0
SHIFTED_SLOPE_DOUBT = 0.5
# Sums of standardised errors beyond 1 (CUSUM): two large errors in a row, or some five of 2 sigma, are a
# shift of the level; at 3 % noise a false alarm comes once in 100,000 iterations of a worker.
ERROR_LIMIT = 4.0
ERROR_DRIFT = 1.0
SHIFT_AT = 5.0
# Errors above this many sigma weigh less, as Huber has it: a spike is not a level.
HUBER_SIGMA = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class CurveMemory:
    """What is remembered of a group's workers; all arrays are of shape (num_workers, ...).

    Attributes:
        sizes, times_s, weights: of the last iterations, newest last, shape (num_workers, WINDOW_ITERATIONS);
            weight 0 marks an empty or forgotten place.
        slope_s: slope that a worker is taken to have without further evidence; 0 before its first time.
        slope_doubt: standard deviation of that slope, as a share of it.
        noise: relative standard deviation of a single time.
        drift_up, drift_down: CUSUM of errors, >= 0.
        run_up, run_down: iterations since the sum was last 0.
        fitted: the curves that explain best what is remembered; zeros for a worker never seen.
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
        """Of workers that were never seen."""
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
        sizes: samples of each worker, shape (num_workers,); of a worker with 0 nothing is learnt.
        times_s: processing times, shape (num_workers,), > 0 where there were samples.
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
    """How many standard deviations the new times lie above what was expected; 0 of unknown workers."""
    fitted = memory.fitted
    expected = np.maximum(fitted.curves.seconds(sizes), 1e-100)
    doubt = np.hypot(memory.noise, fitted.doubt_s(sizes) / expected)
    return np.where(known, (times_s / expected - 1.0) / doubt, 0.0)


def _add_drift(memory: CurveMemory, errors: FloatArray, seen: BoolArray) -> CurveMemory:
    """The memory with the CUSUM of `errors`, and its noise a little nearer to theirs."""
    limited = np.clip(errors, -ERROR_LIMIT, ERROR_LIMIT)
    up = np.where(seen, np.maximum(0.0, memory.drift_up + limited - ERROR_DRIFT), memory.drift_up)
    down = np.where(seen, np.maximum(0.0, memory.drift_down - limited - ERROR_DRIFT), memory.drift_down)
    told = seen & (errors != 0)
    # Errors beyond 3 sigma are spikes or shifts and tell little of the noise.
    square = np.minimum(np.abs(errors), 3.0) ** 2 * memory.noise**2
    variance = np.where(told, (1 - NOISE_RATE) * memory.noise**2 + NOISE_RATE * square, memory.noise**2)
    return replace(
        memory,
        drift_up=up,
        drift_down=down,
        run_up=np.where(seen, np.where(up > 0, memory.run_up + 1, 0), memory.run_up),
        run_down=np.where(seen, np.where(down > 0, memory.run_down + 1, 0), memory.run_down),
        noise=np.maximum(np.sqrt(variance), LEAST_NOISE),
    )


def _appended(window: FloatArray, newest: FloatArray, seen: BoolArray) -> FloatArray:
    """The window one iteration later, for the workers that were seen."""
    return np.where(seen[:, None], np.column_stack([window[:, 1:], newest]), window)


def _forget_before_shifts(memory: CurveMemory) -> CurveMemory:
    """Of workers whose level has shifted, only the iterations since then count, and the slope is in doubt."""
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

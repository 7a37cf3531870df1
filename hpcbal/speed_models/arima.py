"""Fit an ARIMA(2,2,1) model to the speeds of each worker, by conditional least squares."""

from __future__ import annotations

import numpy as np

from hpcbal.policies.batching.arima import Arima
from hpcbal.policies.batching.curves import FloatArray
from hpcbal.policies.batching.speed import SpeedHistory, SpeedPredictor

LEAST_SPEEDS = 40
FIRST_COEFFICIENTS = (-0.5, -0.25, -0.5)  # phi_1, phi_2, theta of noise that was differenced twice
# Within these the model is stationary, and its errors can be told from some 60 iterations.
MOST_PHI_1, MOST_PHI_2, MOST_THETA = 1.5, 0.95, 0.95


def fit_arima(recording: SpeedHistory, previous: SpeedPredictor | None = None) -> Arima:
    """Coefficients with the least squares of one-step errors over a recording.

    A worker with fewer than 40 recorded speeds gets coefficients of NaN: `Arima` falls back to the average.

    Args:
        recording: of one group; see `SpeedRecording.snapshot`.
        previous: not used; the fit takes some milliseconds per worker.

    Source: [LBBSP] Sec. 5.4, Table 3.
    """
    del previous
    coefficients = np.array([_fit_worker(speeds) for speeds in recording.speeds])
    return Arima(phi=coefficients[:, :2], theta=coefficients[:, 2])


def _fit_worker(speeds: FloatArray) -> FloatArray:
    """phi_1, phi_2 and theta, shape (3,)."""
    from scipy.optimize import minimize

    known = speeds[np.isfinite(speeds)]
    if len(known) < LEAST_SPEEDS:
        return np.full(3, np.nan)
    spread = float(np.diff(known, n=2).std())
    differences = np.diff(known, n=2) / (spread if spread > 1e-9 * known.mean() else 1.0)
    result = minimize(
        _squared_errors,
        np.array(FIRST_COEFFICIENTS),
        args=(differences,),
        method="L-BFGS-B",
        bounds=[(-MOST_PHI_1, MOST_PHI_1), (-MOST_PHI_2, MOST_PHI_2), (-MOST_THETA, MOST_THETA)],
    )
    return np.asarray(result.x, np.float64)


def _squared_errors(coefficients: FloatArray, differences: FloatArray) -> float:
    """Mean square of the one-step errors, the first ones taken to be 0."""
    from scipy.signal import lfilter

    phi_1, phi_2, theta = coefficients
    errors = lfilter([1.0, -phi_1, -phi_2], [1.0, theta], differences)
    return float(np.mean(np.square(errors)))

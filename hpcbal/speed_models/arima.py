"""Fit an ARIMA(2,2,1) model to the speeds of each worker, with statsmodels."""

from __future__ import annotations

import warnings

import numpy as np

from hpcbal.policies.batching.arima import Arima
from hpcbal.policies.batching.curves import FloatArray
from hpcbal.policies.batching.speed import SpeedHistory, SpeedPredictor

LEAST_SPEEDS = 40
MOST_SPEEDS = 1000  # only the newest; fitting takes about 0.3 s per worker
# `Arima` counts errors before its history as 0: with this bound they have faded to 4 % by then.
MOST_THETA = 0.95


def fit_arima(recording: SpeedHistory, previous: SpeedPredictor | None = None) -> Arima:
    """Fit the coefficients of maximum likelihood to a recording.

    A worker with fewer than 40 recorded speeds, or with constant speed, gets NaN coefficients: `Arima` then
    falls back to the last speed.

    Args:
        recording: recording of one group; see `SpeedRecording.snapshot`.
        previous: not used.

    Source: [LBBSP] Sec. 5.4, Table 3. Deviation: |theta| <= 0.95. Speeds that do not wander, once differenced
        twice, would give 1, and then no error ever fades.
    """
    del previous
    coefficients = np.array([_fit_worker(speeds) for speeds in recording.speeds]).reshape(-1, 3)
    return Arima(phi=coefficients[:, :2], theta=coefficients[:, 2])


def _fit_worker(speeds: FloatArray) -> FloatArray:
    """phi_1, phi_2 and theta, shape (3,)."""
    from statsmodels.tools.sm_exceptions import ModelWarning
    from statsmodels.tsa.arima.model import ARIMA

    known = speeds[np.isfinite(speeds)][-MOST_SPEEDS:]
    differences = np.diff(known, n=2)
    spread = float(differences.std()) if len(known) >= LEAST_SPEEDS else 0.0
    if spread <= 1e-9 * float(np.abs(known).max(initial=0.0)):
        return np.full(3, np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModelWarning)  # the search ended early: its result so far is used
        warnings.simplefilter("ignore", UserWarning)  # first guesses are not stationary
        # In units of their spread, so that the search's small tolerances are small here too.
        fit = ARIMA(differences / spread, order=(2, 0, 1), trend="n").fit(method="innovations_mle")
    phi_1, phi_2, theta = fit.params[:3]
    return np.array([phi_1, phi_2, np.clip(theta, -MOST_THETA, MOST_THETA)])

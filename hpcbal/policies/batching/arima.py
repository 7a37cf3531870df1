"""Speeds from past speeds by an ARIMA(2,2,1) model per worker, evaluated in NumPy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcbal.policies.batching.curves import FloatArray
from hpcbal.policies.batching.speed import (
    Memoryless,
    SpeedHistory,
    SpeedPredictor,
    check_same_workers,
    or_last_speed,
)

LEAST_ITERATIONS = 6  # two differences, two autoregressive terms, and an error to start from


@dataclass(frozen=True, slots=True, eq=False)
class Arima(SpeedPredictor):
    """Fitted coefficients, one set per worker, of the model of the second differences w of the speeds.

        w_k = phi_1 w_(k-1) + phi_2 w_(k-2) + e_k + theta e_(k-1)

    The next speed is the sum of the last speed, the last change, and the w that the model expects. If fewer
    than six iterations are known, or a worker's coefficients are NaN, the last speeds are used.

    Attributes:
        phi: shape (num_workers, 2).
        theta: -1 < theta < 1, shape (num_workers,).

    Source: [LBBSP] Sec. 3.2.2, Table 3.
    """

    phi: FloatArray
    theta: FloatArray

    def predict(self, history: SpeedHistory) -> FloatArray:
        """Raises: PolicyError: the history has other workers than those that the model was fitted to."""
        check_same_workers("arima", len(self.theta), history)
        if history.num_iterations < LEAST_ITERATIONS:
            return Memoryless().predict(history)
        speeds = history.speeds
        w = np.diff(speeds, n=2, axis=1)
        innovations = w[:, 2:] - self.phi[:, :1] * w[:, 1:-1] - self.phi[:, 1:] * w[:, :-2]
        # e_k = u_k - theta e_(k-1), solved for the newest one; errors before the history count as 0.
        age = np.arange(innovations.shape[1])[::-1]
        error = (innovations * (-self.theta[:, None]) ** age).sum(axis=1)
        expected = self.phi[:, 0] * w[:, -1] + self.phi[:, 1] * w[:, -2] + self.theta * error
        return or_last_speed(2.0 * speeds[:, -1] - speeds[:, -2] + expected, history)

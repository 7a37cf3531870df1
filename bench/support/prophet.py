"""The runtime prophet: learn from each step how long a worker takes for an amount of work."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcbal.policies.batching.time_curves import CurveMemory, FloatArray, TimeCurves, learn
from hpcbal.policies.samples.chronica import Indicators

_LEAST_SLOPE = 1e-12
"""Of the largest slope: an indicator above 0 for a worker whose time does not depend on its work."""


@dataclass(frozen=True, slots=True, eq=False)
class Prophet:
    """The knowledge about the workers of a group; frozen, `after` returns the next one.

    A worker that was never seen counts as one of mean speed, so the first step is dealt by size alone. From
    the second step on times are predicted.

    Attributes:
        memory: of the last steps; see `curve_learning`.

    Source: [CHRONICA] Sec. V-A, Alg. 1. Deviations: recent steps count more, an outlier counts less, a shift
        of a worker's speed ends the memory of the steps before it, and a worker that is not saturated has a
        floor. The paper fits a plain line through all steps.
    """

    memory: CurveMemory

    @classmethod
    def of(cls, num_workers: int) -> Prophet:
        """A prophet that knows nothing yet."""
        return cls(CurveMemory.empty(num_workers))

    def after(self, work: FloatArray, seconds: FloatArray) -> Prophet:
        """The prophet after one more step.

        Args:
            work: of each worker's share, shape (num_workers,), >= 0; nothing is learnt about a worker with 0.
            seconds: until each worker arrived at the collective, shape (num_workers,).
        """
        return Prophet(learn(self.memory, work, seconds))

    @property
    def curves(self) -> TimeCurves:
        """Seconds of each worker for an amount of work."""
        known = self.memory.slope_s > 0
        fitted = self.memory.fitted.curves
        if known.all():
            return fitted
        mean = float(fitted.slope_s[known].mean()) if known.any() else 1.0
        zeros = np.zeros(len(known))
        return TimeCurves(
            np.where(known, fitted.floor_s, zeros),
            np.where(known, fitted.launch_s, zeros),
            np.where(known, fitted.slope_s, mean),
        )

    @property
    def indicators(self) -> Indicators:
        """The lines of the curves, for CHRONICA's scheduler: no floors, and launches of 0 or more."""
        curves = self.curves
        least = _LEAST_SLOPE * max(1.0, float(curves.slope_s.max(initial=0.0)))
        return Indicators(np.maximum(curves.slope_s, least), np.maximum(curves.launch_s, 0.0))

"""Train a small network by L-BFGS, and stop before it learns the noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hpcbal.policies.batching.curves import FloatArray

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

# Every fifth stretch of so many iterations is kept from fitting: single ones would be too alike to their
# neighbours, and the newest alone may all be of one kind.
HELD_OUT_STRETCH = 20
HELD_OUT_EVERY = 5
PATIENCE_STEPS = 10
MAX_STEPS = 200
PENALTY = 1e-3  # of squared weights, per squared unit of standardised error
LEAST_ROWS = 40


@dataclass(frozen=True, slots=True)
class Rows:
    """Standardised inputs, shape (n, num_inputs), and what followed, shape (n,)."""

    inputs: FloatArray
    targets: FloatArray

    def where(self, chosen: FloatArray) -> Rows:
        """Some of the rows."""
        return Rows(self.inputs[chosen], self.targets[chosen])


# (weights, rows) -> the network's outputs, shape (n,), and a function from the gradient of a loss by these
# outputs to its gradient by the weights.
Network = Callable[[FloatArray, Rows], tuple[FloatArray, Callable[[FloatArray], FloatArray]]]


def train(network: Network, rows: Rows, start: FloatArray) -> FloatArray:
    """The weights with the least loss on the rows held out, among those that L-BFGS passes through.

    Args:
        network: its outputs and gradients.
        rows: at least `LEAST_ROWS`, in the order of time.
        start: weights to begin with.

    Source: [LBBSP] Sec. 4 (early stopping).
    """
    from scipy.optimize import minimize

    stretch = np.arange(len(rows.targets)) // HELD_OUT_STRETCH
    held_out = stretch % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
    if not held_out.any():
        held_out = np.arange(len(rows.targets)) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
    kept = rows.where(held_out)
    best, best_loss, waited = start, loss(start, network, kept)[0], 0

    def stop_early(intermediate_result: OptimizeResult) -> None:
        nonlocal best, best_loss, waited
        now = loss(intermediate_result.x, network, kept)[0]
        waited += 1
        if now < best_loss:
            best, best_loss, waited = intermediate_result.x.copy(), now, 0
        if waited >= PATIENCE_STEPS:
            raise StopIteration

    minimize(
        loss,
        start,
        args=(network, rows.where(~held_out)),
        jac=True,
        method="L-BFGS-B",
        callback=stop_early,
        options={"maxiter": MAX_STEPS},
    )
    return best


def loss(weights: FloatArray, network: Network, rows: Rows) -> tuple[float, FloatArray]:
    """Mean squared error with the penalty of large weights, and its gradient."""
    outputs, back = network(weights, rows)
    error = outputs - rows.targets
    value = float(error @ error) / len(error) + PENALTY * float(weights @ weights)
    return value, back(2.0 * error / len(error)) + 2.0 * PENALTY * weights


def scale_of(values: FloatArray) -> FloatArray:
    """Standard deviations along the first axis, 1 where nothing varies."""
    spread = values.std(axis=0)
    return np.where(spread > 1e-9 * np.maximum(np.abs(values.mean(axis=0)), 1e-9), spread, 1.0)

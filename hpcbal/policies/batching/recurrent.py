"""Speeds from the last two speeds by one small recurrent network per worker, evaluated in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from hpcbal.policies.batching.curves import FloatArray
from hpcbal.policies.batching.speed import (
    Memoryless,
    SpeedHistory,
    SpeedPredictor,
    check_same_workers,
    or_last_speed,
)

LOOK_BACK = 2
NUM_HIDDEN = 4
NUM_GATES = {"rnn": 1, "lstm": 4}

Cell = Literal["rnn", "lstm"]


@dataclass(frozen=True, slots=True, eq=False)
class Recurrent(SpeedPredictor):
    """Fitted networks: a plain recurrent cell or an LSTM sees the last two speeds, older one first.

    Inputs and outputs are square roots of speeds, as in `Narx`. If the history is shorter, or a worker was
    not fitted, the last speeds are used.

    Attributes:
        cell: kind of the hidden units.
        weights: of all workers, in the order of `unpack`, shape (num_workers, n).
        mean, scale: of the roots of speeds, shape (num_workers,); NaN for a worker that was not fitted.

    Source: [LBBSP] Sec. 3.2.2, Table 3.
    """

    cell: Cell
    weights: FloatArray
    mean: FloatArray
    scale: FloatArray

    def predict(self, history: SpeedHistory) -> FloatArray:
        """Raises: PolicyError: the history has other workers than those that the networks were fitted to."""
        check_same_workers(self.cell, len(self.mean), history)
        if history.num_iterations < LOOK_BACK:
            return Memoryless().predict(history)
        inputs = (np.sqrt(history.speeds[:, -LOOK_BACK:]) - self.mean[:, None]) / self.scale[:, None]
        wx, u, bias, out, last = unpack(self.cell, self.weights)
        hidden = memory = np.zeros((len(self.mean), NUM_HIDDEN))
        for x in inputs.T:
            gates = x[:, None] * wx + np.einsum("wh,whg->wg", hidden, u) + bias
            hidden, memory = step(self.cell, gates, memory)
        root = self.mean + self.scale * ((hidden * out).sum(axis=1) + last)
        return or_last_speed(np.maximum(root, 0.0) ** 2, history)


def num_weights(cell: Cell) -> int:
    """Number of weights of one worker's network."""
    gates = NUM_GATES[cell] * NUM_HIDDEN
    return gates + NUM_HIDDEN * gates + gates + NUM_HIDDEN + 1


def unpack(
    cell: Cell, weights: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    """Split weights by their use; leading axes are kept.

    Args:
        weights: shape (..., num_weights(cell)).

    Returns: from the input (..., gates), from the hidden units (..., NUM_HIDDEN, gates), bias (..., gates),
        from the hidden units to the output (..., NUM_HIDDEN), output bias (...).
    """
    gates = NUM_GATES[cell] * NUM_HIDDEN
    ends = np.cumsum([gates, NUM_HIDDEN * gates, gates, NUM_HIDDEN])
    wx, u, bias, out, last = np.split(weights, ends, axis=-1)
    return wx, u.reshape(*u.shape[:-1], NUM_HIDDEN, gates), bias, out, last[..., 0]


def step(cell: Cell, gates: FloatArray, memory: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Hidden units and memory after one input; a plain cell leaves the memory unchanged.

    Args:
        gates: before their activations, shape (n, NUM_GATES * NUM_HIDDEN); order in an LSTM: input, forget,
            output, candidate.
        memory: shape (n, NUM_HIDDEN).
    """
    if cell == "rnn":
        return np.tanh(gates), memory
    enter, forget, leave = np.split(sigmoid(gates[:, : 3 * NUM_HIDDEN]), 3, axis=1)
    kept: FloatArray = forget * memory + enter * np.tanh(gates[:, 3 * NUM_HIDDEN :])
    return leave * np.tanh(kept), kept


def sigmoid(values: FloatArray) -> FloatArray:
    """1 / (1 + e**-x), without overflow for any x."""
    result: FloatArray = 0.5 * (1.0 + np.tanh(0.5 * values))
    return result

"""Speeds from small models per worker, evaluated in NumPy: ARIMA, NARX, and recurrent networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from hpcbal.policies.batching.speed import (
    Memoryless,
    SpeedHistory,
    SpeedPredictor,
    check_same_workers,
    or_last_speed,
)
from hpcbal.policies.batching.time_curves import FloatArray

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


NARX_LOOK_BACK = 2  # d_v = d_c = d_m
NUM_INPUTS = NARX_LOOK_BACK + 2 * (NARX_LOOK_BACK + 1)


@dataclass(frozen=True, slots=True, eq=False)
class Narx(SpeedPredictor):
    """Fitted networks, one per worker: the next speed from the last two and from CPU and memory.

    Inputs and outputs are square roots of speeds: an error of one sample/s then counts more for a slow
    worker, and all others wait for the slow ones. The network has one hidden layer of tanh units, and direct
    weights from inputs to output for the linear part. If the history is shorter than the look-back, or CPU or
    memory were not measured, the last speeds are used.

    Attributes:
        input_mean, input_scale: of the inputs, shape (num_workers, NUM_INPUTS).
        hidden_weights: shape (num_workers, NUM_INPUTS, num_hidden).
        hidden_bias: shape (num_workers, num_hidden).
        output_weights: from hidden units, shape (num_workers, num_hidden).
        direct_weights: from inputs, shape (num_workers, NUM_INPUTS).
        output_bias: shape (num_workers,).
        speed_mean, speed_scale: of the roots, shape (num_workers,); the output is in scales from the mean.

    Source: [LBBSP] Eq. 4, Fig. 3 and Sec. 4. Deviations: the direct weights, the roots.
    """

    input_mean: FloatArray
    input_scale: FloatArray
    hidden_weights: FloatArray
    hidden_bias: FloatArray
    output_weights: FloatArray
    direct_weights: FloatArray
    output_bias: FloatArray
    speed_mean: FloatArray
    speed_scale: FloatArray

    def predict(self, history: SpeedHistory) -> FloatArray:
        """Raises: PolicyError: the history has other workers than those that the networks were fitted to."""
        check_same_workers("narx", len(self.speed_mean), history)
        if history.num_iterations <= NARX_LOOK_BACK:
            return Memoryless().predict(history)
        inputs = (narx_inputs(history) - self.input_mean) / self.input_scale
        hidden = np.tanh(np.einsum("wi,wih->wh", inputs, self.hidden_weights) + self.hidden_bias)
        output = (hidden * self.output_weights).sum(axis=1) + (inputs * self.direct_weights).sum(axis=1)
        root = self.speed_mean + self.speed_scale * (output + self.output_bias)
        return or_last_speed(np.maximum(root, 0.0) ** 2, history)


def narx_inputs(history: SpeedHistory) -> FloatArray:
    """Return the networks' inputs, newest iteration first, shape (num_workers, NUM_INPUTS)."""
    newest_first = slice(None, -NARX_LOOK_BACK - 2, -1)
    return np.concatenate(
        [
            np.sqrt(history.speeds[:, : -NARX_LOOK_BACK - 1 : -1]),
            history.cpu[:, newest_first],
            history.memory[:, newest_first],
        ],
        axis=1,
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

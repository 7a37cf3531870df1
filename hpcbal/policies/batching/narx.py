"""Speeds from speeds, CPU and memory by one small network per worker, evaluated in NumPy."""

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

LOOK_BACK = 2  # d_v = d_c = d_m
NUM_INPUTS = LOOK_BACK + 2 * (LOOK_BACK + 1)


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
        if history.num_iterations <= LOOK_BACK:
            return Memoryless().predict(history)
        inputs = (narx_inputs(history) - self.input_mean) / self.input_scale
        hidden = np.tanh(np.einsum("wi,wih->wh", inputs, self.hidden_weights) + self.hidden_bias)
        output = (hidden * self.output_weights).sum(axis=1) + (inputs * self.direct_weights).sum(axis=1)
        root = self.speed_mean + self.speed_scale * (output + self.output_bias)
        return or_last_speed(np.maximum(root, 0.0) ** 2, history)


def narx_inputs(history: SpeedHistory) -> FloatArray:
    """What the networks see of the newest iterations, newest first, shape (num_workers, NUM_INPUTS)."""
    newest_first = slice(None, -LOOK_BACK - 2, -1)
    return np.concatenate(
        [
            np.sqrt(history.speeds[:, : -LOOK_BACK - 1 : -1]),
            history.cpu[:, newest_first],
            history.memory[:, newest_first],
        ],
        axis=1,
    )

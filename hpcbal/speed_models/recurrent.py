"""Fit the recurrent networks of a group, one per worker: a plain cell or an LSTM."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hpcbal.policies.batching.curves import FloatArray
from hpcbal.policies.batching.recurrent import (
    LOOK_BACK,
    NUM_HIDDEN,
    Cell,
    Recurrent,
    num_weights,
    sigmoid,
    step,
    unpack,
)
from hpcbal.policies.batching.speed import SpeedHistory, SpeedPredictor, check_same_workers
from hpcbal.speed_models.training import LEAST_ROWS, Network, Rows, scale_of, train

Back = Callable[[FloatArray], FloatArray]


def fit_rnn(recording: SpeedHistory, previous: SpeedPredictor | None = None, seed: int = 0) -> Recurrent:
    """Plain recurrent networks fitted to a recording; see `fit_lstm`."""
    return _fit("rnn", recording, previous, seed)


def fit_lstm(recording: SpeedHistory, previous: SpeedPredictor | None = None, seed: int = 0) -> Recurrent:
    """LSTM networks fitted to a recording, by L-BFGS with early stopping.

    A worker's weights start from those of `previous`, if it is of the same cell, and its scales are kept. A
    worker with fewer than 40 known triples of speeds is not fitted: `Recurrent` falls back to the average.

    Args:
        recording: of one group; see `SpeedRecording.snapshot`.
        previous: the model that was fitted before, of as many workers; of another kind, it is ignored.
        seed: of the first weights.

    Raises: PolicyError: `previous` is of another number of workers.
    Source: [LBBSP] Sec. 5.4, Table 3. Deviation: L-BFGS over all rows, where the paper has Keras.
    """
    return _fit("lstm", recording, previous, seed)


def _fit(cell: Cell, recording: SpeedHistory, previous: SpeedPredictor | None, seed: int) -> Recurrent:
    reused = previous if isinstance(previous, Recurrent) and previous.cell == cell else None
    if reused is not None:
        check_same_workers(cell, len(reused.mean), recording)
    fitted = [_fit_worker(cell, speeds, reused, i, seed) for i, speeds in enumerate(recording.speeds)]
    weights, means, scales = zip(*fitted, strict=True)
    return Recurrent(cell, np.stack(weights), np.array(means), np.array(scales))


def _fit_worker(
    cell: Cell, speeds: FloatArray, previous: Recurrent | None, worker: int, seed: int
) -> tuple[FloatArray, float, float]:
    """Weights, mean and scale of one worker."""
    roots = np.sqrt(speeds)
    count = len(roots) - LOOK_BACK
    if count < LEAST_ROWS:
        return np.zeros(num_weights(cell)), np.nan, 1.0
    inputs, targets = np.stack([roots[:count], roots[1 : count + 1]], axis=1), roots[LOOK_BACK:]
    whole = np.isfinite(inputs).all(axis=1) & np.isfinite(targets)
    if int(whole.sum()) < LEAST_ROWS:
        return np.zeros(num_weights(cell)), np.nan, 1.0
    inputs, targets = inputs[whole], targets[whole]
    if previous is None or not np.isfinite(previous.mean[worker]):
        mean, scale = float(targets.mean()), float(scale_of(targets))
        start = 0.3 * np.random.default_rng((seed, worker)).standard_normal(num_weights(cell))
    else:
        mean, scale = float(previous.mean[worker]), float(previous.scale[worker])
        start = previous.weights[worker]
    rows = Rows((inputs - mean) / scale, (targets - mean) / scale)
    return train(network_of(cell), rows, start), mean, scale


def network_of(cell: Cell) -> Network:
    """Outputs and gradients of one worker's network, as `train` wants them."""

    def network(weights: FloatArray, rows: Rows) -> tuple[FloatArray, Back]:
        wx, u, bias, out, last = unpack(cell, weights)
        hidden = memory = np.zeros((len(rows.inputs), NUM_HIDDEN))
        passed = []  # input, hidden units and memory before, gates, memory after
        for x in rows.inputs.T:
            gates = x[:, None] * wx + hidden @ u + bias
            before = (x, hidden, memory, gates)
            hidden, memory = step(cell, gates, memory)
            passed.append((*before, memory))

        def back(slope: FloatArray) -> FloatArray:
            d_wx, d_u, d_bias = np.zeros_like(wx), np.zeros_like(u), np.zeros_like(bias)
            d_hidden, d_memory = slope[:, None] * out, np.zeros_like(hidden)
            for x, h, m, gates, after in reversed(passed):
                d_gates, d_memory = _back_step(cell, gates, m, after, d_hidden, d_memory)
                d_wx += x @ d_gates
                d_u += h.T @ d_gates
                d_bias += d_gates.sum(0)
                d_hidden = d_gates @ u.T
            return np.concatenate([d_wx, d_u.ravel(), d_bias, hidden.T @ slope, [slope.sum()]])

        return hidden @ out + last, back

    return network


def _back_step(
    cell: Cell,
    gates: FloatArray,
    memory: FloatArray,
    after: FloatArray,
    d_hidden: FloatArray,
    d_memory: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Gradients by the gates and by the memory before, from those by the hidden units and memory after."""
    if cell == "rnn":
        return d_hidden * (1.0 - np.tanh(gates) ** 2), d_memory
    enter, forget, leave = np.split(sigmoid(gates[:, : 3 * NUM_HIDDEN]), 3, axis=1)
    candidate, shown = np.tanh(gates[:, 3 * NUM_HIDDEN :]), np.tanh(after)
    d_after = d_memory + d_hidden * leave * (1.0 - shown**2)
    d_gates = [
        d_after * candidate * enter * (1.0 - enter),
        d_after * memory * forget * (1.0 - forget),
        d_hidden * shown * leave * (1.0 - leave),
        d_after * enter * (1.0 - candidate**2),
    ]
    return np.concatenate(d_gates, axis=1), d_after * forget

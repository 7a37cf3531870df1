"""Fit the recurrent networks of a group, one per worker: a plain cell or an LSTM."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcbal.policies.batching.networks import LOOK_BACK, NUM_GATES, NUM_HIDDEN, Cell, Recurrent, num_weights
from hpcbal.policies.batching.speed import SpeedHistory, SpeedPredictor, check_same_workers
from hpcbal.policies.batching.time_curves import FloatArray
from hpcbal.speed_models.networks import DTYPE, Weights, import_keras, train
from hpcbal.speed_models.recording import Rows, Scales

if TYPE_CHECKING:
    import keras

# Keras orders an LSTM's gates input, forget, candidate, output; `Recurrent` has the candidate last.
KERAS_GATES = {"rnn": (0,), "lstm": (0, 1, 3, 2)}


def fit_rnn(recording: SpeedHistory, previous: SpeedPredictor | None = None, seed: int = 0) -> Recurrent:
    """Fit plain recurrent networks to a recording; see `fit_lstm`."""
    return _fit("rnn", recording, previous, seed)


def fit_lstm(recording: SpeedHistory, previous: SpeedPredictor | None = None, seed: int = 0) -> Recurrent:
    """Fit LSTM networks to a recording, with early stopping.

    A worker's weights start from those of `previous`, if it has the same cell, and its scales are kept. A
    worker with fewer than 40 known triples of speeds is not fitted: `Recurrent` falls back to the last speed.

    Args:
        recording: recording of one group; see `SpeedRecording.snapshot`.
        previous: an earlier model for the same number of workers; ignored if it is of another kind.
        seed: seed of the first weights.

    Raises: PolicyError: if `previous` is for another number of workers.
    Source: [LBBSP] Sec. 5.4, Table 3.
    """
    return _fit("lstm", recording, previous, seed)


def _fit(cell: Cell, recording: SpeedHistory, previous: SpeedPredictor | None, seed: int) -> Recurrent:
    reused = previous if isinstance(previous, Recurrent) and previous.cell == cell else None
    if reused is not None:
        check_same_workers(cell, len(reused.mean), recording)
    rows = _rows_of(recording)
    scales = rows.scales(None if reused is None else _scales(reused))
    num_workers = rows.num_workers
    weights = 0.3 * np.random.default_rng(seed).standard_normal((num_workers, num_weights(cell)))
    if reused is not None:
        weights = np.where(np.isfinite(reused.mean)[:, None], reused.weights, weights)
    if np.isfinite(scales.target_mean).any():
        network = build_recurrent(cell, weights)
        (weights,) = train(
            network,
            rows.standardised(scales),
            lambda model: read_recurrent(cell, model, num_workers),
            shape=lambda inputs: inputs.transpose(0, 2, 1),
            is_reused=reused is not None,
        )
    return Recurrent(cell, weights, scales.target_mean, scales.target_scale)


def build_recurrent(cell: Cell, weights: FloatArray) -> keras.Model:
    """Build a group's networks as one model: inputs (n, LOOK_BACK, num_workers), outputs (n, num_workers, 1).

    The units of all workers form one layer; weights between units of different workers stay 0.

    Args:
        weights: see `Recurrent`, shape (num_workers, n).
    """
    keras = import_keras()
    num_workers, gates = len(weights), NUM_GATES[cell]
    own = np.repeat(np.eye(num_workers), NUM_HIDDEN, axis=1)  # (workers, units)
    kernel_mask, recurrent_mask = np.tile(own, gates), np.tile(own.T @ own, gates)
    layer = keras.layers.SimpleRNN if cell == "rnn" else keras.layers.LSTM
    inputs = keras.Input((LOOK_BACK, num_workers), dtype=DTYPE)
    hidden = layer(
        num_workers * NUM_HIDDEN,
        kernel_constraint=lambda kernel: kernel * kernel_mask.astype(DTYPE),
        recurrent_constraint=lambda kernel: kernel * recurrent_mask.astype(DTYPE),
        unroll=True,
        dtype=DTYPE,
        name="hidden",
    )(inputs)
    by_worker = keras.layers.Reshape((num_workers, NUM_HIDDEN), dtype=DTYPE)(hidden)
    outputs = keras.layers.EinsumDense(
        "bwh,who->bwo", (num_workers, 1), bias_axes="wo", dtype=DTYPE, name="output"
    )(by_worker)
    network = keras.Model(inputs, outputs)
    wx, u, bias, out, last = _by_gate(cell, weights)
    workers = np.arange(num_workers)
    kernel = np.zeros((num_workers, gates, num_workers, NUM_HIDDEN))
    kernel[workers, :, workers] = wx
    recurrent = np.zeros((num_workers, NUM_HIDDEN, gates, num_workers, NUM_HIDDEN))
    recurrent[workers, :, :, workers] = u
    units = num_workers * NUM_HIDDEN
    network.get_layer("hidden").set_weights(
        [
            kernel.reshape(num_workers, gates * units),
            recurrent.reshape(units, gates * units),
            bias.transpose(1, 0, 2).reshape(gates * units),
        ]
    )
    network.get_layer("output").set_weights([out[..., None], last[:, None]])
    return network


def read_recurrent(cell: Cell, network: keras.Model, num_workers: int) -> Weights:
    """The present weights of `network`, in the form that `build_recurrent` takes."""
    gates, workers = NUM_GATES[cell], np.arange(num_workers)
    kernel, recurrent, bias = network.get_layer("hidden").get_weights()
    out, last = network.get_layer("output").get_weights()
    order = list(KERAS_GATES[cell])
    wx = kernel.reshape(num_workers, gates, num_workers, NUM_HIDDEN)[workers, :, workers]
    u = recurrent.reshape(num_workers, NUM_HIDDEN, gates, num_workers, NUM_HIDDEN)[workers, :, :, workers]
    by_worker = bias.reshape(gates, num_workers, NUM_HIDDEN).transpose(1, 0, 2)
    parts = (wx[:, order], u[:, :, order], by_worker[:, order], out, last)
    return (np.concatenate([part.reshape(num_workers, -1) for part in parts], axis=1),)


def _by_gate(cell: Cell, weights: FloatArray) -> tuple[FloatArray, ...]:
    """The weights that `Recurrent.unpack` returns, with gates in Keras' order on a separate axis."""
    gates, order = NUM_GATES[cell], np.argsort(KERAS_GATES[cell])
    sizes = np.cumsum([gates * NUM_HIDDEN, gates * NUM_HIDDEN**2, gates * NUM_HIDDEN, NUM_HIDDEN])
    wx, u, bias, out, last = np.split(weights, sizes, axis=1)
    return (
        wx.reshape(-1, gates, NUM_HIDDEN)[:, order],
        u.reshape(-1, NUM_HIDDEN, gates, NUM_HIDDEN)[:, :, order],
        bias.reshape(-1, gates, NUM_HIDDEN)[:, order],
        out,
        last[:, 0],
    )


def _rows_of(recording: SpeedHistory) -> Rows:
    """Square roots of two speeds, the older one first, and of the next one."""
    roots = np.sqrt(recording.speeds)
    count = max(roots.shape[1] - LOOK_BACK, 0)
    inputs = np.stack([roots[:, lag : lag + count] for lag in range(LOOK_BACK)], axis=-1)
    return Rows.of(inputs.transpose(1, 0, 2), roots[:, LOOK_BACK:].T)


def _scales(model: Recurrent) -> Scales:
    mean, scale = (np.repeat(part[:, None], LOOK_BACK, axis=1) for part in (model.mean, model.scale))
    return Scales(mean, scale, model.mean, model.scale)

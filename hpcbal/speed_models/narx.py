"""Fit the NARX networks of a group, one per worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcbal.policies.batching.curves import FloatArray
from hpcbal.policies.batching.narx import LOOK_BACK, NUM_INPUTS, Narx
from hpcbal.policies.batching.speed import SpeedHistory, SpeedPredictor, check_same_workers
from hpcbal.speed_models.networks import DTYPE, Weights, import_keras, penalty, train
from hpcbal.speed_models.rows import Rows, Scales

if TYPE_CHECKING:
    import keras

NUM_HIDDEN = 6
RIDGE = 1e-3  # ridge penalty per row of the linear model that the networks start from


def fit_narx(recording: SpeedHistory, previous: SpeedPredictor | None = None, seed: int = 0) -> Narx:
    """Fit networks to a recording, with early stopping.

    A worker's weights start from those of `previous`, if given, so that a refit takes few steps; the scales
    of the inputs are then kept as well. Otherwise they start from the best linear model, which fitting can
    then only improve. A worker with fewer than 40 complete rows, or without measured CPU and memory, gets a
    network that always returns NaN: `Narx` then falls back to the last speed.

    Args:
        recording: recording of one group; see `SpeedRecording.snapshot`.
        previous: an earlier model for the same number of workers; ignored if it is of another kind.
        seed: seed of the first weights.

    Raises: PolicyError: if `previous` is for another number of workers.
    Source: [LBBSP] Sec. 3.2.2, Sec. 4. Deviations: the linear start; see also `Narx`.
    """
    reused = previous if isinstance(previous, Narx) else None
    if reused is not None:
        check_same_workers("narx", len(reused.speed_mean), recording)
    rows = _rows_of(recording)
    before = None
    if reused is not None:
        before = Scales(reused.input_mean, reused.input_scale, reused.speed_mean, reused.speed_scale)
    scales = rows.scales(before)
    weights = _first_weights(rows.standardised(scales), reused, np.random.default_rng(seed))
    if np.isfinite(scales.target_mean).any():
        network = build_narx(weights)
        weights = train(
            network,
            rows.standardised(scales),
            read_narx,
            shape=lambda inputs: inputs,
            is_reused=reused is not None,
        )
    hidden_weights, hidden_bias, output_weights, direct_weights, output_bias = weights
    return Narx(
        input_mean=scales.input_mean,
        input_scale=scales.input_scale,
        hidden_weights=hidden_weights,
        hidden_bias=hidden_bias,
        output_weights=output_weights,
        direct_weights=direct_weights,
        output_bias=output_bias,
        speed_mean=scales.target_mean,
        speed_scale=scales.target_scale,
    )


def build_narx(weights: Weights) -> keras.Model:
    """Build a group's networks as one model.

    Inputs have shape (n, num_workers, NUM_INPUTS), outputs (n, num_workers, 1).

    Args:
        weights: hidden weights and bias, output weights, direct weights, output bias, as in `Narx`.
    """
    keras = import_keras()
    num_workers, _, num_hidden = weights[0].shape
    dense = keras.layers.EinsumDense
    inputs = keras.Input((num_workers, NUM_INPUTS), dtype=DTYPE)
    regular = {"kernel_regularizer": penalty(num_workers), "dtype": DTYPE}
    hidden = dense(
        "bwi,wih->bwh", (num_workers, num_hidden), bias_axes="wh", activation="tanh", name="hidden", **regular
    )(inputs)
    bent = dense("bwh,who->bwo", (num_workers, 1), bias_axes="wo", name="output", **regular)(hidden)
    direct = dense("bwi,wio->bwo", (num_workers, 1), name="direct", **regular)(inputs)
    network = keras.Model(inputs, keras.layers.Add(dtype=DTYPE)([bent, direct]))
    hidden_weights, hidden_bias, output_weights, direct_weights, output_bias = weights
    network.get_layer("hidden").set_weights([hidden_weights, hidden_bias])
    network.get_layer("output").set_weights([output_weights[..., None], output_bias[:, None]])
    network.get_layer("direct").set_weights([direct_weights[..., None]])
    return network


def read_narx(network: keras.Model) -> Weights:
    """The present weights of `network`, in the form that `build_narx` takes."""
    hidden_weights, hidden_bias = network.get_layer("hidden").get_weights()
    output_weights, output_bias = network.get_layer("output").get_weights()
    (direct_weights,) = network.get_layer("direct").get_weights()
    return hidden_weights, hidden_bias, output_weights[..., 0], direct_weights[..., 0], output_bias[:, 0]


def _rows_of(recording: SpeedHistory) -> Rows:
    """Inputs in the order of `narx_inputs`, and the square root of the next speed."""
    roots, cpu, memory = np.sqrt(recording.speeds), recording.cpu, recording.memory
    count = max(roots.shape[1] - LOOK_BACK - 1, 0)
    columns = [roots[:, LOOK_BACK - lag :][:, :count] for lag in range(LOOK_BACK)]
    columns += [
        part[:, LOOK_BACK - lag :][:, :count] for part in (cpu, memory) for lag in range(LOOK_BACK + 1)
    ]
    return Rows.of(np.stack(columns, axis=-1).transpose(1, 0, 2), roots[:, LOOK_BACK + 1 :].T)


def _first_weights(rows: Rows, previous: Narx | None, rng: np.random.Generator) -> Weights:
    """Weights of `previous` for workers it knows; else the linear model with nearly idle hidden units."""
    workers = rows.num_workers
    direct = np.stack([_linear(rows.inputs[:, i], rows.targets[:, i]) for i in range(workers)])
    new = (
        rng.standard_normal((workers, NUM_INPUTS, NUM_HIDDEN)) / np.sqrt(NUM_INPUTS),
        np.zeros((workers, NUM_HIDDEN)),
        0.01 * rng.standard_normal((workers, NUM_HIDDEN)),
        direct,
        np.zeros(workers),
    )
    if previous is None or previous.hidden_weights.shape != new[0].shape:
        return new
    old = (
        previous.hidden_weights,
        previous.hidden_bias,
        previous.output_weights,
        previous.direct_weights,
        previous.output_bias,
    )
    known = np.isfinite(previous.speed_mean)
    return tuple(
        np.where(known.reshape(-1, *[1] * (part.ndim - 1)), before, part)
        for before, part in zip(old, new, strict=True)
    )


def _linear(inputs: FloatArray, targets: FloatArray) -> FloatArray:
    """Weights of the ridge regression of standardised targets on standardised inputs; 0 without rows."""
    ridge = RIDGE * max(len(inputs), 1) * np.eye(inputs.shape[1])
    solution: FloatArray = np.linalg.solve(inputs.T @ inputs + ridge, inputs.T @ targets)
    return solution

"""Fit the NARX networks of a group, one per worker, and stop before they learn the noise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hpcbal.policies.batching.curves import FloatArray
from hpcbal.policies.batching.narx import LOOK_BACK, NUM_INPUTS, Narx
from hpcbal.policies.batching.speed import SpeedHistory, SpeedPredictor, check_same_workers
from hpcbal.speed_models.training import LEAST_ROWS, Rows, scale_of, train

NUM_HIDDEN = 6


def fit_narx(recording: SpeedHistory, previous: SpeedPredictor | None = None, seed: int = 0) -> Narx:
    """Networks fitted to a recording, by L-BFGS with early stopping.

    A worker's weights start from those of `previous`, if given, so that a refit takes few steps; the inputs'
    scales are then kept as well. A worker of which fewer than 40 complete rows are recorded, or whose CPU
    and memory were not measured, gets a network that always answers NaN: `Narx` falls back to the average.

    Args:
        recording: of one group; see `SpeedRecording.snapshot`.
        previous: the model that was fitted before, of as many workers; of another kind, it is ignored.
        seed: of the first weights.

    Raises: PolicyError: `previous` is of another number of workers.
    Source: [LBBSP] Sec. 3.2.2, Sec. 4. Deviation: L-BFGS over all rows, where the paper has Keras.
    """
    num_workers = recording.speeds.shape[0]
    reused = previous if isinstance(previous, Narx) else None
    if reused is not None:
        check_same_workers("narx", len(reused.speed_mean), recording)
    models = [_fit_worker(recording, worker, reused, seed) for worker in range(num_workers)]
    return Narx(*(np.stack(parts) for parts in zip(*models, strict=True)))


def _fit_worker(
    recording: SpeedHistory, worker: int, previous: Narx | None, seed: int
) -> tuple[FloatArray, ...]:
    """The fields of `Narx` for one worker, in their order."""
    inputs, speeds = _rows_of(recording, worker)
    if len(speeds) < LEAST_ROWS:
        nothing = _unpack(np.zeros(_num_weights()))
        return (np.zeros(NUM_INPUTS), np.ones(NUM_INPUTS), *nothing, np.array(np.nan), np.array(1.0))
    if previous is None or not np.isfinite(previous.speed_mean[worker]):
        scales = (inputs.mean(0), scale_of(inputs), speeds.mean(), scale_of(speeds))
        start = _first_weights(np.random.default_rng((seed, worker)))
    else:
        scales = tuple(
            field[worker]
            for field in (
                previous.input_mean,
                previous.input_scale,
                previous.speed_mean,
                previous.speed_scale,
            )
        )
        start = _pack(previous, worker)
    mean, scale, speed_mean, speed_scale = scales
    rows = Rows((inputs - mean) / scale, (speeds - speed_mean) / speed_scale)
    weights = train(narx_network, rows, start)
    return (mean, scale, *_unpack(weights), np.asarray(speed_mean), np.asarray(speed_scale))


def _rows_of(recording: SpeedHistory, worker: int) -> tuple[FloatArray, FloatArray]:
    """Inputs as `narx_inputs` orders them, and the root of the next speed; rows with gaps are left out."""
    speeds, cpu, memory = (part[worker] for part in (recording.speeds, recording.cpu, recording.memory))
    count = len(speeds) - LOOK_BACK - 1
    if count < 1:
        return np.empty((0, NUM_INPUTS)), np.empty(0)
    columns = [speeds[LOOK_BACK - lag :][:count] for lag in range(LOOK_BACK)]
    columns += [part[LOOK_BACK - lag :][:count] for part in (cpu, memory) for lag in range(LOOK_BACK + 1)]
    inputs, targets = np.stack(columns, axis=1), speeds[LOOK_BACK + 1 :]
    whole = np.isfinite(inputs).all(axis=1) & np.isfinite(targets)
    inputs[:, :LOOK_BACK] = np.sqrt(inputs[:, :LOOK_BACK])
    return inputs[whole], np.sqrt(targets[whole])


def narx_network(weights: FloatArray, rows: Rows) -> tuple[FloatArray, Callable[[FloatArray], FloatArray]]:
    """Outputs and gradients of one worker's network, as `train` wants them."""
    hidden_weights, hidden_bias, output_weights, direct_weights, output_bias = _unpack(weights)
    hidden = np.tanh(rows.inputs @ hidden_weights + hidden_bias)
    outputs = hidden @ output_weights + rows.inputs @ direct_weights + output_bias

    def back(slope: FloatArray) -> FloatArray:
        d_hidden = slope[:, None] * output_weights * (1.0 - hidden**2)
        return np.concatenate(
            [
                (rows.inputs.T @ d_hidden).ravel(),
                d_hidden.sum(0),
                hidden.T @ slope,
                rows.inputs.T @ slope,
                [slope.sum()],
            ]
        )

    return outputs, back


def _num_weights() -> int:
    return NUM_INPUTS * NUM_HIDDEN + 2 * NUM_HIDDEN + NUM_INPUTS + 1


def _unpack(weights: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    """Hidden weights and bias, output weights, direct weights, output bias."""
    sizes = np.cumsum([NUM_INPUTS * NUM_HIDDEN, NUM_HIDDEN, NUM_HIDDEN, NUM_INPUTS])
    hidden, bias, output, direct, last = np.split(weights, sizes)
    return hidden.reshape(NUM_INPUTS, NUM_HIDDEN), bias, output, direct, last[0]


def _pack(model: Narx, worker: int) -> FloatArray:
    parts = (
        model.hidden_weights[worker].ravel(),
        model.hidden_bias[worker],
        model.output_weights[worker],
        model.direct_weights[worker],
        model.output_bias[worker : worker + 1],
    )
    return np.concatenate(parts)


def _first_weights(rng: np.random.Generator) -> FloatArray:
    """Small hidden weights; the rest 0, so that the first prediction is the mean speed."""
    weights = np.zeros(_num_weights())
    hidden = NUM_INPUTS * NUM_HIDDEN
    weights[:hidden] = rng.standard_normal(hidden) / np.sqrt(NUM_INPUTS)
    weights[hidden + NUM_HIDDEN : hidden + 2 * NUM_HIDDEN] = 0.1 * rng.standard_normal(NUM_HIDDEN)
    return weights

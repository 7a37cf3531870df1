"""The predictors that are fitted, by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from hpcbal.policies.batching.networks import LOOK_BACK, NUM_INPUTS, Arima, Narx
from hpcbal.policies.batching.speed import SpeedHistory, SpeedPredictor, check_same_workers
from hpcbal.policies.batching.time_curves import FloatArray
from hpcbal.speed_models.networks import DTYPE, Weights, import_keras, penalty, train
from hpcbal.speed_models.recording import Rows, Scales
from hpcbal.speed_models.recurrent import fit_lstm, fit_rnn

if TYPE_CHECKING:
    import keras


LEAST_SPEEDS = 40
MOST_SPEEDS = 1000  # only the newest; fitting takes about 0.3 s per worker
# `Arima` counts errors before its history as 0: with this bound they have faded to 4 % by then.
MOST_THETA = 0.95


def fit_arima(recording: SpeedHistory, previous: SpeedPredictor | None = None) -> Arima:
    """Fit the coefficients of maximum likelihood to a recording.

    A worker with fewer than 40 recorded speeds, or with constant speed, gets NaN coefficients: `Arima` then
    falls back to the last speed.

    Args:
        recording: recording of one group; see `SpeedRecording.snapshot`.
        previous: not used.

    Source: [LBBSP] Sec. 5.4, Table 3. Deviation: |theta| <= 0.95. Speeds that do not wander, once differenced
        twice, would give 1, and then no error ever fades.
    """
    del previous
    coefficients = np.array([_fit_worker(speeds) for speeds in recording.speeds]).reshape(-1, 3)
    return Arima(phi=coefficients[:, :2], theta=coefficients[:, 2])


def _fit_worker(speeds: FloatArray) -> FloatArray:
    """phi_1, phi_2 and theta, shape (3,)."""
    from statsmodels.tools.sm_exceptions import ModelWarning
    from statsmodels.tsa.arima.model import ARIMA

    known = speeds[np.isfinite(speeds)][-MOST_SPEEDS:]
    differences = np.diff(known, n=2)
    spread = float(differences.std()) if len(known) >= LEAST_SPEEDS else 0.0
    if spread <= 1e-9 * float(np.abs(known).max(initial=0.0)):
        return np.full(3, np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModelWarning)  # the search ended early: its result so far is used
        warnings.simplefilter("ignore", UserWarning)  # first guesses are not stationary
        # In units of their spread, so that the search's small tolerances are small here too.
        fit = ARIMA(differences / spread, order=(2, 0, 1), trend="n").fit(method="innovations_mle")
    phi_1, phi_2, theta = fit.params[:3]
    return np.array([phi_1, phi_2, np.clip(theta, -MOST_THETA, MOST_THETA)])


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


# (recording, previous predictor) -> model; the libraries are imported only when one is called.
Fitter = Callable[[SpeedHistory, SpeedPredictor | None], SpeedPredictor]

FITTERS: Mapping[str, Fitter] = MappingProxyType(
    {"arima": fit_arima, "lstm": fit_lstm, "narx": fit_narx, "rnn": fit_rnn}
)


@dataclass(frozen=True, slots=True, eq=False)
class FitJob:
    """One fit that is due; call it to fit in the current process.

    Attributes:
        name: name of the fitter.
        recording: data to fit.
        previous: the predictor used so far.
    """

    name: str
    recording: SpeedHistory
    previous: SpeedPredictor | None

    def __call__(self) -> SpeedPredictor:
        """Return the fitted model."""
        return FITTERS[self.name](self.recording, self.previous)

"""The policies' NumPy models give the same answers as the libraries with the same weights."""

from __future__ import annotations

import numpy as np
import pytest

from hpcbal.policies.batching.networks import (
    LOOK_BACK,
    NUM_INPUTS,
    Arima,
    Cell,
    Narx,
    Recurrent,
    narx_inputs,
    num_weights,
)
from hpcbal.policies.batching.speed import SpeedHistory
from hpcbal.speed_models.fitters import NUM_HIDDEN, build_narx, read_narx
from hpcbal.speed_models.recurrent import build_recurrent, read_recurrent

WORKERS = 3


def a_history(rng: np.random.Generator, num_iterations: int = 8) -> SpeedHistory:
    shape = (WORKERS, num_iterations)
    return SpeedHistory(
        rng.uniform(1.0, 9.0, shape), rng.uniform(0.0, 1.0, shape), rng.uniform(0.0, 1.0, shape)
    )


def test_narx_answers_as_keras_does() -> None:
    rng = np.random.default_rng(0)
    weights = (
        rng.standard_normal((WORKERS, NUM_INPUTS, NUM_HIDDEN)),
        rng.standard_normal((WORKERS, NUM_HIDDEN)),
        rng.standard_normal((WORKERS, NUM_HIDDEN)),
        rng.standard_normal((WORKERS, NUM_INPUTS)),
        rng.standard_normal(WORKERS),
    )
    mean, scale = rng.standard_normal((WORKERS, NUM_INPUTS)), rng.uniform(0.5, 2.0, (WORKERS, NUM_INPUTS))
    model = Narx(mean, scale, *weights, np.full(WORKERS, 20.0), np.array([1.0, 0.5, 2.0]))
    history, network = a_history(rng), build_narx(weights)
    answer = np.asarray(network(((narx_inputs(history) - mean) / scale)[None]))[0, :, 0]
    np.testing.assert_allclose(model.predict(history), (20.0 + model.speed_scale * answer) ** 2, rtol=1e-5)
    for read, given in zip(read_narx(network), weights, strict=True):
        np.testing.assert_allclose(read, given, rtol=1e-6)


@pytest.mark.parametrize("cell", ["rnn", "lstm"])
def test_recurrent_networks_answer_as_keras_does(cell: Cell) -> None:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((WORKERS, num_weights(cell)))
    model = Recurrent(cell, weights, np.array([10.0, 12.0, 14.0]), np.array([1.0, 0.5, 2.0]))
    history, network = a_history(rng), build_recurrent(cell, weights)
    roots = np.sqrt(history.speeds[:, -LOOK_BACK:])
    answer = np.asarray(network(((roots - model.mean[:, None]) / model.scale[:, None]).T[None]))[0, :, 0]
    np.testing.assert_allclose(model.predict(history), (model.mean + model.scale * answer) ** 2, rtol=1e-5)
    (read,) = read_recurrent(cell, network, WORKERS)
    np.testing.assert_allclose(read, weights, rtol=1e-6)


def test_arima_answers_as_statsmodels_does() -> None:
    from statsmodels.tsa.arima.model import ARIMA

    phi, theta = np.array([[0.4, -0.3], [-0.2, 0.1], [0.0, 0.5]]), np.array([-0.6, 0.5, 0.0])
    speeds = 50.0 + np.random.default_rng(0).standard_normal((WORKERS, 64)).cumsum(axis=1)
    answer = Arima(phi, theta).predict(SpeedHistory(speeds, speeds, speeds))
    for row, coefficients, moving, predicted in zip(speeds, phi, theta, answer, strict=True):
        model = ARIMA(row, order=(2, 2, 1), trend="n")
        expected = model.smooth([*coefficients, moving, 1.0]).forecast(1)[0]
        assert predicted == pytest.approx(expected, rel=1e-5)

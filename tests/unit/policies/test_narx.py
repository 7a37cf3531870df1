"""NARX networks learn what drives speed, and expect the last speed where they know nothing."""

from __future__ import annotations

import functools
import pickle

import numpy as np
import pytest

from hpcbal.errors import PolicyError
from hpcbal.policies.batching import narx
from hpcbal.policies.batching.lb_bsp_cpu import Memoryless, SpeedHistory, SpeedPredictor
from hpcbal.policies.batching.narx import NUM_INPUTS, NUM_WEIGHTS, Narx, _output, _slopes, fit_narx
from hpcbal.policies.batching.time_curves import FloatArray

WORKERS = 2


def shared_workers(num_iterations: int, seed: int = 0) -> SpeedHistory:
    """Speeds that follow the free CPU of the same iteration, which changes about every fifth; some noise."""
    rng = np.random.default_rng(seed)
    shape = (WORKERS, num_iterations)
    cpu = rng.uniform(0.2, 1.0, shape)
    for k in range(1, num_iterations):
        cpu[:, k] = np.where(rng.random(WORKERS) < 0.2, cpu[:, k], cpu[:, k - 1])
    noise = 1.0 + 0.02 * rng.standard_normal(shape)
    speeds = np.array([[40.0], [20.0]]) * cpu**0.8 * noise
    # Column k holds the speed of iteration k and the resources before iteration k + 1.
    return SpeedHistory(speeds[:, :-1], cpu[:, 1:], np.full(shape, 0.5)[:, 1:])


@functools.cache
def model_of_200() -> Narx:
    return fit_narx(shared_workers(200))


def rmse(predictor: SpeedPredictor, recording: SpeedHistory, since: int) -> FloatArray:
    errors = [
        predictor.predict(part(recording, k)) - recording.speeds[:, k]
        for k in range(since, recording.num_iterations)
    ]
    return np.sqrt(np.mean(np.square(errors), axis=0))


def part(recording: SpeedHistory, end: int) -> SpeedHistory:
    return SpeedHistory(*(a[:, :end] for a in (recording.speeds, recording.cpu, recording.memory)))


def test_resources_tell_what_the_last_speed_tells_too_late() -> None:
    recording = shared_workers(700)
    model = fit_narx(part(recording, 500))
    assert (rmse(model, recording, 500) <= 0.4 * rmse(Memoryless(), recording, 500)).all()


def test_slopes_are_those_of_the_output() -> None:
    rng = np.random.default_rng(0)
    weights, inputs = rng.standard_normal(NUM_WEIGHTS), rng.standard_normal((5, NUM_INPUTS))
    small = 1e-6 * np.eye(NUM_WEIGHTS)
    measured = [(_output(weights + d, inputs) - _output(weights - d, inputs)) / 2e-6 for d in small]
    np.testing.assert_allclose(_slopes(weights, inputs), np.transpose(measured), atol=1e-7)


def test_a_fit_is_repeatable_and_survives_pickling() -> None:
    recording, first = shared_workers(200), model_of_200()
    for model in (fit_narx(recording), pickle.loads(pickle.dumps(first))):
        np.testing.assert_array_equal(model.predict(recording), first.predict(recording))


def test_a_refitted_model_is_at_least_as_good_on_its_new_recording() -> None:
    recording, model = shared_workers(400), model_of_200()
    again = fit_narx(recording, model)
    assert (rmse(again, recording, 10) <= 1.05 * rmse(model, recording, 10)).all()
    np.testing.assert_array_equal(again.input_mean, model.input_mean)


def test_only_the_newest_iterations_are_fitted_to(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = shared_workers(200)
    monkeypatch.setattr(narx, "MOST_ITERATIONS", 100)
    np.testing.assert_array_equal(fit_narx(recording).weights, fit_narx(recording.newest(100)).weights)
    monkeypatch.undo()
    assert (fit_narx(recording).weights != fit_narx(recording.newest(100)).weights).any()


def test_with_too_few_rows_a_worker_keeps_its_network() -> None:
    model = model_of_200()
    again = fit_narx(shared_workers(40, seed=1), model)
    np.testing.assert_array_equal(again.weights, model.weights)


def test_the_last_speed_predicts_what_was_not_recorded() -> None:
    recording = shared_workers(30)
    nothing = np.full(recording.speeds.shape, np.nan)
    for unknown in (part(recording, 4), part(recording, 1), SpeedHistory(nothing, nothing, nothing)):
        np.testing.assert_array_equal(fit_narx(unknown).predict(recording), recording.speeds[:, -1])
    np.testing.assert_array_equal(model_of_200().predict(part(recording, 1)), recording.speeds[:, 0])


def test_without_cpu_and_memory_the_last_speed_is_expected() -> None:
    recording = shared_workers(200)
    nothing = np.full(recording.speeds.shape, np.nan)
    blind = SpeedHistory(recording.speeds, nothing, nothing)
    np.testing.assert_array_equal(model_of_200().predict(blind), recording.speeds[:, -1])
    np.testing.assert_array_equal(fit_narx(blind).predict(recording), recording.speeds[:, -1])


def test_constant_workers_are_predicted_to_stay_so() -> None:
    constant = np.ones((WORKERS, 100))
    recording = SpeedHistory(7.0 * constant, 0.5 * constant, 0.5 * constant)
    np.testing.assert_allclose(fit_narx(recording).predict(recording), 7.0, rtol=1e-3)


def test_a_model_for_another_number_of_workers_is_refused() -> None:
    alone = SpeedHistory(*(np.ones((1, 9)) for _ in range(3)))
    message = "narx: the model was fitted to 2 workers, but the history has 1"
    with pytest.raises(PolicyError, match=message):
        model_of_200().predict(alone)
    with pytest.raises(PolicyError, match=message):
        fit_narx(alone, model_of_200())

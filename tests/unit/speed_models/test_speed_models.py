"""Fitted predictors learn what drives speed, and fall back to the average where they know nothing."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Sequence

import numpy as np
import pytest

from hpcbal.errors import InputError, PolicyError
from hpcbal.policies.batching import BatchTask, Observation
from hpcbal.policies.batching.networks import Arima
from hpcbal.policies.batching.speed import Ema, Memoryless, SpeedHistory, SpeedPredictor
from hpcbal.policies.batching.time_curves import FloatArray
from hpcbal.speed_models import FITTERS, SpeedLearner, SpeedRecording
from hpcbal.speed_models.fitters import fit_arima, fit_narx

WORKERS = 2
KINDS = ("rnn", "narx", "arima")
"""One predictor of each kind; `lstm` is fitted and converted as `rnn` is."""


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
def model_of_200(name: str) -> SpeedPredictor:
    """Fitted to 200 iterations; each fit takes a second."""
    return FITTERS[name](shared_workers(200), None)


def rmse(predictor: SpeedPredictor, recording: SpeedHistory, since: int) -> FloatArray:
    errors = [
        predictor.predict(part(recording, k)) - recording.speeds[:, k]
        for k in range(since, recording.num_iterations)
    ]
    return np.sqrt(np.mean(np.square(errors), axis=0))


def part(recording: SpeedHistory, end: int, start: int = 0) -> SpeedHistory:
    return SpeedHistory(*(a[:, start:end] for a in (recording.speeds, recording.cpu, recording.memory)))


def observe(recording: SpeedHistory, k: int, batch: int = 16) -> list[Observation]:
    return [
        Observation(batch, batch / float(speed), cpu_share=float(cpu), memory_share=float(memory))
        for speed, cpu, memory in zip(
            recording.speeds[:, k], recording.cpu[:, k], recording.memory[:, k], strict=True
        )
    ]


def test_narx_predicts_from_resources_what_an_average_learns_too_late() -> None:
    recording = shared_workers(700)
    model = fit_narx(part(recording, 500))
    assert (rmse(model, recording, 500) <= 0.5 * rmse(Ema(), recording, 500)).all()


def test_a_recurrent_network_learns_that_speeds_alternate() -> None:
    rng = np.random.default_rng(0)
    speeds = np.where(np.arange(300) % 2, 10.0, 30.0) * (1.0 + 0.02 * rng.standard_normal((WORKERS, 300)))
    recording = SpeedHistory(speeds, speeds, speeds)
    model = FITTERS["lstm"](part(recording, 200), None)
    assert (rmse(model, recording, 200) <= 1.5).all()


def test_arima_finds_the_coefficients_that_made_the_speeds() -> None:
    rng = np.random.default_rng(0)
    phi, theta, errors = (0.5, -0.3), -0.6, rng.standard_normal(3000)
    w = np.zeros(3000)
    for k in range(2, 3000):
        w[k] = phi[0] * w[k - 1] + phi[1] * w[k - 2] + errors[k] + theta * errors[k - 1]
    speeds = 1e6 + np.cumsum(np.cumsum(w))
    recording = SpeedHistory(speeds[None], speeds[None], speeds[None])
    model = fit_arima(recording)
    np.testing.assert_allclose([*model.phi[0], *model.theta], [*phi, theta], atol=0.08)
    assert rmse(model, recording, 2800)[0] == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("name", KINDS)
def test_a_fit_is_repeatable_and_survives_pickling(name: str) -> None:
    recording, first = shared_workers(200), model_of_200(name)
    second = FITTERS[name](recording, None)
    kept = pickle.loads(pickle.dumps(first))
    for model in (second, kept):
        np.testing.assert_array_equal(model.predict(recording), first.predict(recording))


@pytest.mark.parametrize("name", ["rnn", "arima"])
def test_a_fit_beside_networks_of_64_bits_is_the_same(name: str) -> None:
    import keras

    first, before = model_of_200(name), keras.config.floatx()
    keras.config.set_floatx("float64" if before == "float32" else "float32")
    try:
        second = FITTERS[name](shared_workers(200), None)
    finally:
        keras.config.set_floatx(before)
    recording = shared_workers(200)
    np.testing.assert_allclose(second.predict(recording), first.predict(recording), rtol=1e-6)


@pytest.mark.parametrize("name", KINDS)
def test_a_refitted_model_is_at_least_as_good_on_its_new_recording(name: str) -> None:
    recording, model = shared_workers(400), model_of_200(name)
    again = FITTERS[name](recording, model)
    assert (rmse(again, recording, 10) <= 1.05 * rmse(model, recording, 10)).all()


@pytest.mark.parametrize("name", FITTERS)
def test_the_last_speed_predicts_what_was_not_recorded(name: str) -> None:
    recording = shared_workers(30)
    nothing = np.full(recording.speeds.shape, np.nan)
    for unknown in (part(recording, 4), SpeedHistory(nothing, nothing, nothing)):
        model = FITTERS[name](unknown, None)
        np.testing.assert_array_equal(model.predict(recording), Memoryless().predict(recording))
    model = model_of_200(name)
    np.testing.assert_array_equal(model.predict(part(recording, 1)), recording.speeds[:, 0])


def test_narx_without_cpu_and_memory_expects_the_last_speed() -> None:
    recording = shared_workers(200)
    nothing = np.full(recording.speeds.shape, np.nan)
    blind = SpeedHistory(recording.speeds, nothing, nothing)
    np.testing.assert_array_equal(model_of_200("narx").predict(blind), Memoryless().predict(blind))
    np.testing.assert_array_equal(fit_narx(blind).predict(recording), Memoryless().predict(recording))


@pytest.mark.parametrize("name", FITTERS)
def test_constant_workers_are_predicted_to_stay_so(name: str) -> None:
    constant = np.ones((WORKERS, 100))
    recording = SpeedHistory(7.0 * constant, 0.5 * constant, 0.5 * constant)
    np.testing.assert_allclose(FITTERS[name](recording, None).predict(recording), 7.0, rtol=1e-3)


@pytest.mark.parametrize("name", FITTERS)
def test_a_model_for_another_number_of_workers_is_refused(name: str) -> None:
    model = model_of_200(name)
    alone = SpeedHistory(*(np.ones((1, 9)) for _ in range(3)))
    with pytest.raises(
        PolicyError, match=f"{name}: the model was fitted to 2 workers, but the history has 1"
    ):
        model.predict(alone)


def test_a_recording_keeps_the_newest() -> None:
    recording, source = SpeedRecording(WORKERS, max_iterations=50), shared_workers(131)
    for k in range(130):
        recording.add(observe(source, k))
        kept = recording.snapshot()
        assert kept.num_iterations == min(k + 1, 50)
        np.testing.assert_allclose(kept.speeds[:, -1], source.speeds[:, k])
    for mine, theirs in zip(
        (kept.speeds, kept.cpu), (source.speeds[:, 80:130], source.cpu[:, 80:130]), strict=True
    ):
        np.testing.assert_allclose(mine, theirs)
    assert recording.num_recorded == 130


def test_a_recording_refuses_senseless_arguments() -> None:
    with pytest.raises(PolicyError, match="recording of 0 workers"):
        SpeedRecording(0)
    with pytest.raises(PolicyError, match="got 0 observations of 2 workers"):
        SpeedRecording(2).add([])


def learn(learner: SpeedLearner, source: SpeedHistory, iterations: Sequence[int]) -> list[int]:
    """Iterations after which a fit was due; each result is used at once."""
    due = []
    state = learner.policy.start(BatchTask.uniform(32, WORKERS))
    for k in iterations:
        seen = observe(source, k)
        learner.record(seen)
        if (job := learner.job()) is not None:
            learner.use(job())
            due.append(k)
        state = learner.policy.decide(state, seen).state
        assert sum(state.batch_sizes) == 32
    return due


def test_a_learner_fits_first_after_some_iterations_and_then_again_and_again() -> None:
    """It treats all predictors alike; ARIMA is fitted in the shortest time."""
    learner = SpeedLearner("arima", WORKERS, first_fit=50, refit_every=30)
    assert learner.policy.predictor == Memoryless()
    assert learn(learner, shared_workers(91), range(90)) == [49, 79]
    assert isinstance(learner.policy.predictor, Arima)


def test_a_learner_starts_with_the_model_of_an_earlier_run() -> None:
    model = model_of_200("narx")
    assert SpeedLearner("narx", WORKERS, model).policy.predictor is model


def test_a_predictor_that_needs_no_fit_is_never_fitted() -> None:
    learner = SpeedLearner("memoryless", WORKERS, first_fit=2, refit_every=1)
    assert learn(learner, shared_workers(20), range(10)) == []
    assert learner.policy.predictor == Memoryless()


@pytest.mark.parametrize(
    ("name", "needs"), [("narx", "keras and psutil and tensorflow"), ("arima", "statsmodels")]
)
def test_without_its_package_a_fitted_predictor_says_what_to_install(
    name: str, needs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcbal.speed_models.learner.find_spec", lambda name: None)
    with pytest.raises(InputError, match=rf"needs {needs}, .*or use one of ema, memoryless"):
        SpeedLearner(name, WORKERS)
    assert SpeedLearner("ema", WORKERS).policy.predictor == Ema()


def test_a_learner_refuses_senseless_arguments() -> None:
    with pytest.raises(PolicyError, match="got 'nrax', allowed: "):
        SpeedLearner("nrax", 2)
    with pytest.raises(PolicyError, match="first fit after 0 iterations"):
        SpeedLearner("narx", 2, first_fit=0)

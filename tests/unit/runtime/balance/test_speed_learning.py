"""A round records, has models fitted beside it, and keeps its current model when a fit fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hpcbal.policies.batching import BatchTask, Observation
from hpcbal.policies.batching.networks import Arima
from hpcbal.policies.batching.speed import SpeedPredictor
from hpcbal.runtime.balance.speed_learning import KeptModel, SpeedLearning
from hpcbal.speed_models import FitJob, SpeedLearner
from hpcbal.speed_models.fit_process import FitFailedError, FitProcess

MODEL = Arima(np.zeros((2, 2)), np.zeros(2))
SEEN = [Observation(5, 0.5), Observation(5, 1.0)]


class Fits(FitProcess):
    """Answers with the next of `answers` on request; starts no process."""

    def __init__(self, *answers: SpeedPredictor | Exception) -> None:
        super().__init__()
        self.answers = list(answers)
        self.jobs: list[FitJob] = []
        self.is_done = True
        self.closed = False
        self.under_way = False

    @property
    def is_busy(self) -> bool:
        return self.under_way

    def start(self, job: FitJob, keep: Callable[[SpeedPredictor], None] | None = None) -> None:
        self.jobs.append(job)
        self.under_way = True

    def take(self) -> SpeedPredictor | None:
        if not (self.under_way and self.is_done):
            return None
        self.under_way = False
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.closed = True


def train(learning: SpeedLearning, num_steps: int) -> None:
    state = learning.start(BatchTask.uniform(10, 2))
    for _ in range(num_steps):
        state = learning.decide(state, SEEN).state
        assert sum(state.batch_sizes) == 10


def a_learner() -> SpeedLearner:
    return SpeedLearner("arima", 2, first_fit=5, refit_every=10)


def test_fits_start_when_they_are_due_and_their_models_are_used(tmp_path: Path) -> None:
    learner, fits = a_learner(), Fits(MODEL, MODEL)
    learning = SpeedLearning("a", learner, fits, KeptModel(tmp_path, "arima", (0, 1)))
    train(learning, 5)
    assert [job.recording.num_iterations for job in fits.jobs] == [5]
    facts = learning.take_facts()
    assert (facts["predictor"], facts["fitted"], facts["fits"]) == ("arima", False, 0)
    train(learning, 11)
    assert [job.recording.num_iterations for job in fits.jobs] == [5, 15]
    assert learner.policy.predictor is MODEL
    facts = learning.take_facts()
    assert (facts["fitted"], facts["fits"]) == (True, 2)
    assert learning.take_facts()["fits"] == 0


def test_while_a_fit_is_under_way_no_other_starts(tmp_path: Path) -> None:
    fits = Fits(MODEL)
    fits.is_done = False
    train(SpeedLearning("a", a_learner(), fits, KeptModel(tmp_path, "arima", (0, 1))), 60)
    assert len(fits.jobs) == 1


def test_a_failure_is_reported_once_and_the_round_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    learner, fits = a_learner(), Fits(FitFailedError("it ended with code 9: no memory"))
    train(SpeedLearning("a", learner, fits, KeptModel(tmp_path, "arima", (0, 1))), 60)
    assert caplog.text.count("with the current model: it ended with code 9: no memory") == 1
    assert len(fits.jobs) == 1
    assert not learner.is_fitted


def test_a_fit_that_a_round_had_no_time_for_is_due_in_the_next(tmp_path: Path) -> None:
    learner, fits, again = a_learner(), Fits(), Fits(MODEL)
    fits.is_done = False
    kept = KeptModel(tmp_path, "arima", (0, 1))
    learning = SpeedLearning("a", learner, fits, kept)
    train(learning, 6)
    learning.close()
    assert fits.closed
    train(SpeedLearning("a", learner, again, kept), 2)
    assert learner.policy.predictor is MODEL


def test_a_real_fit_reaches_the_decisions_and_the_disk(tmp_path: Path) -> None:
    kept, learner = KeptModel(tmp_path, "arima", (0, 1)), SpeedLearner("arima", 2, first_fit=50)
    learning = SpeedLearning("a", learner, FitProcess(), kept)
    rng, end = np.random.default_rng(0), time.monotonic() + 240.0
    state = learning.start(BatchTask.uniform(10, 2))
    while not learner.is_fitted:
        seen = [Observation(5, float(seconds)) for seconds in rng.uniform(0.4, 0.6, 2)]
        state = learning.decide(state, seen).state
        assert time.monotonic() < end
        time.sleep(0.001)
    learning.close()
    found = kept.read()
    assert isinstance(found, Arima)
    np.testing.assert_array_equal(found.theta, learner.policy.predictor.theta)  # type: ignore[attr-defined]

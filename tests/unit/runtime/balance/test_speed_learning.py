"""A group records its steps, has models fitted beside them, and keeps its model when a fit fails."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hpcbal.policies.batching import BatchTask, Observation
from hpcbal.policies.batching.lb_bsp_cpu import LbBspCpu, LbBspCpuState, SpeedHistory
from hpcbal.policies.batching.narx import Narx, fit_narx
from hpcbal.runtime.balance import speed_learning
from hpcbal.runtime.balance.speed_learning import KeptModel, SpeedLearning

TASK = BatchTask.uniform(30, 2)


class Fits:
    """Fits only while its gate is open, and counts the iterations that it was given."""

    def __init__(self, fit: Callable[[SpeedHistory, Narx | None], Narx]) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.lengths: list[int] = []
        self.previous: list[Narx | None] = []
        self._fit = fit

    def __call__(self, recording: SpeedHistory, previous: Narx | None) -> Narx:
        self.lengths.append(recording.num_iterations)
        self.previous.append(previous)
        assert self.gate.wait(60.0)
        return self._fit(recording, previous)


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> Fits:
    fits = Fits(fit_narx)
    monkeypatch.setattr(speed_learning, "fit_narx", fits)
    return fits


def learning_in(folder: Path, first_fit: int = 50, refit_every: int = 20) -> SpeedLearning:
    return SpeedLearning("a", LbBspCpu(), first_fit, refit_every, KeptModel(folder, (0, 1)))


def train(
    learning: SpeedLearning, state: LbBspCpuState, num_steps: int, *, waiting: bool = True
) -> LbBspCpuState:
    """Steps of two workers, one twice as fast; after each, a fit may end if `waiting`."""
    rng = np.random.default_rng(len(state.history.speeds))
    for _ in range(num_steps):
        seen = [
            Observation(size, size / speed * float(noise), cpu_share=0.5, memory_share=0.5)
            for size, speed, noise in zip(
                state.batch_sizes, (20.0, 10.0), rng.uniform(0.99, 1.01, 2), strict=True
            )
        ]
        state = learning.decide(state, seen).state
        assert sum(state.batch_sizes) == 30
        if waiting and learning._fit is not None:
            learning._fit.exception(60.0)
    return state


def test_fits_start_when_they_are_due_and_their_models_are_used(tmp_path: Path, fits: Fits) -> None:
    learning = learning_in(tmp_path)
    state = train(learning, learning.start(TASK), 50)
    assert fits.lengths == [50]
    facts = learning.take_facts()
    assert (facts["predictor"], facts["fitted"], facts["fits"]) == ("narx", False, 0)
    state = train(learning, state, 21)
    assert (fits.lengths, fits.previous[0]) == ([50, 70], None)
    assert fits.previous[1] is not None
    facts = learning.take_facts()
    assert (facts["fitted"], facts["fits"]) == (True, 2)
    assert facts["fit_s"] > 0.0
    assert learning.take_facts()["fits"] == 0
    assert abs(state.batch_sizes[0] - 20) <= 1


def test_a_model_serves_the_next_start(tmp_path: Path, fits: Fits) -> None:
    learning = learning_in(tmp_path)
    train(learning, learning.start(TASK), 50)
    again = learning_in(tmp_path)
    assert again.take_facts()["fitted"]
    train(again, again.start(TASK), 50)
    assert fits.previous[-1] is not None  # it is fitted further


def test_while_a_fit_is_under_way_no_other_starts(tmp_path: Path, fits: Fits) -> None:
    fits.gate.clear()
    learning = learning_in(tmp_path)
    train(learning, learning.start(TASK), 200, waiting=False)
    fits.gate.set()
    assert len(fits.lengths) == 1


def test_a_failure_is_reported_once_and_training_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def singular(recording: SpeedHistory, previous: Narx | None) -> Narx:
        raise np.linalg.LinAlgError("Singular matrix")

    fits = Fits(singular)
    monkeypatch.setattr(speed_learning, "fit_narx", fits)
    learning = learning_in(tmp_path)
    train(learning, learning.start(TASK), 200)
    assert caplog.text.count("a: fitting a speed model failed; the current model stays: Singular matrix") == 1
    assert len(fits.lengths) == 1
    assert not learning.take_facts()["fitted"]

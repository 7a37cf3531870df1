"""A replay shows a predictor what a run shows: the last iteration, and resources before the next."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import predictor_replay
from support.predictor_replay import Traces, limit, observe, replay, replay_fitted

from hpcbal.policies.batching.lb_bsp_cpu import Memoryless, SpeedHistory

NUM_ITERATIONS = 60


@pytest.fixture
def steady() -> Traces:
    """Two workers, the first three times as fast."""
    speeds = np.repeat([[300.0], [100.0]], NUM_ITERATIONS, axis=1)
    return Traces(speeds, np.linspace([0.0, 0.5], [0.5, 1.0], NUM_ITERATIONS).T, np.zeros_like(speeds))


def test_a_worker_is_seen_with_its_next_resources(steady: Traces) -> None:
    fast, slow = observe(steady, (30, 20), k=7)
    assert (fast.num_samples, fast.processing_s) == (30, 0.1)
    assert (slow.num_samples, slow.processing_s) == (20, 0.2)
    assert slow.cpu_share == steady.cpu[1, 8]


@pytest.mark.parametrize("name", ["memoryless", "ema"])
def test_steady_speeds_are_predicted_and_balanced_exactly(name: str, steady: Traces) -> None:
    row = replay(name, steady, 400, fit_after=10, refit_every=10)
    assert row["rmse"] == pytest.approx(0.0, abs=1e-9)
    assert row["time"] == pytest.approx(0.5)  # 300 and 100 samples in 1 s; even batches take 2 s
    assert limit(steady, 400, 10) == pytest.approx(0.5)
    assert replay_fitted(steady, 400, 10) == pytest.approx(0.5, rel=0.02)


def test_no_policy_is_faster_than_known_speeds(steady: Traces) -> None:
    rng = np.random.default_rng(0)
    noisy = Traces(steady.speeds * rng.uniform(0.5, 1.0, steady.speeds.shape), steady.cpu, steady.memory)
    least = limit(noisy, 400, 10)
    for name in ("memoryless", "ema"):
        row = replay(name, noisy, 400, 10, 10)
        assert row["rmse"] > 0.0
        assert row["time"] > least


def test_a_model_predicts_from_the_iteration_after_its_fit(
    steady: Traces, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    used: list[int] = []

    class Model(Memoryless):
        def predict(self, history: SpeedHistory) -> Any:
            used.append(asked[-1])
            return history.speeds[:, -1]

    def fit(recording: SpeedHistory, previous: object) -> Model:
        assert (previous is None) == (not asked)
        asked.append(recording.num_iterations)
        return Model()

    monkeypatch.setattr(predictor_replay, "fit_narx", fit)
    replay("narx", steady, 400, 10, 10)
    assert asked == [10, 20, 30, 40, 50]
    assert used[0] == 10
    # Each decision predicts, and is then measured; the decision after the fit is still that of the old model.
    assert len(used) == 2 * (NUM_ITERATIONS - 1 - 10)

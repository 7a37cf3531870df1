"""Whatever is observed, networks can be fitted to it, and their predictions be turned into batches."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbal.policies.batching import BatchTask, Observation, WorkerLimits
from hpcbal.policies.batching.lb_bsp_cpu import LbBspCpu, Memoryless, SpeedHistory, SpeedPredictor
from hpcbal.policies.batching.narx import fit_narx

NUM_WORKERS = 3
shares = st.none() | st.floats(0.0, 1.0)


@functools.cache
def predictor_called(name: str) -> SpeedPredictor:
    """The last worker of `narx` was never measured."""
    if name == "memoryless":
        return Memoryless()
    rng = np.random.default_rng(0)
    speeds, cpu, memory = rng.uniform(0.1, 1.0, (3, NUM_WORKERS, 80))
    speeds[-1] = cpu[-1] = memory[-1] = np.nan
    return fit_narx(SpeedHistory(speeds, cpu, memory))


@st.composite
def observations(draw: st.DrawFn) -> list[Observation]:
    seen = []
    for _ in range(NUM_WORKERS):
        size = draw(st.integers(0, 50))
        time_s = draw(st.floats(1e-6, 1e6)) if size else 0.0
        seen.append(Observation(size, time_s, cpu_share=draw(shares), memory_share=draw(shares)))
    return seen


@pytest.mark.parametrize("name", ["memoryless", "narx"])
@given(iterations=st.lists(observations(), min_size=1, max_size=9))
@settings(deadline=None, max_examples=20)
def test_predictions_can_be_split_by(name: str, iterations: list[list[Observation]]) -> None:
    policy = LbBspCpu(predictor_called(name))
    state = policy.start(BatchTask.uniform(60, NUM_WORKERS, WorkerLimits(0, 55)))
    ever_seen = [False] * NUM_WORKERS
    for seen in iterations:
        ever_seen = [ever or bool(one.num_samples) for ever, one in zip(ever_seen, seen, strict=True)]
        state = policy.decide(state, seen).state
        assert sum(state.batch_sizes) == 60
        assert all(0 <= size <= 55 for size in state.batch_sizes)
        predicted = policy.predictor.predict(state.history)
        assert predicted.shape == (NUM_WORKERS,)
        assert np.isfinite(predicted[ever_seen]).all()


@given(data=st.data(), length=st.integers(0, 200))
@settings(deadline=None, max_examples=20)
def test_any_recording_can_be_fitted(data: st.DataObject, length: int) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    scale = 10.0 ** data.draw(st.integers(-4, 6))
    varies = data.draw(st.booleans())
    speeds = scale * np.exp(rng.standard_normal((2, length)) * varies)
    cpu, memory = rng.uniform(0.0, 1.0, (2, 2, length))
    cpu[rng.random((2, length)) < data.draw(st.floats(0.0, 1.0))] = np.nan
    recording = SpeedHistory(speeds, cpu, memory)
    again = fit_narx(recording, fit_narx(recording))
    if length:
        assert np.isfinite(again.predict(recording)).all()

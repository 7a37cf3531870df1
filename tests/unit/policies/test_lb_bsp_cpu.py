"""Alg. 1: shares in proportion to predicted speeds, whatever predicts them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from hpcbal.errors import PolicyError
from hpcbal.policies.batching import BATCHING, BatchTask, Observation, WorkerLimits
from hpcbal.policies.batching.lb_bsp_cpu import LbBspCpu, LbBspCpuState
from hpcbal.policies.batching.speed import HISTORY_ITERATIONS, PREDICTORS, Ema, Memoryless, SpeedHistory


def after(
    state: LbBspCpuState, speeds: Sequence[float], policy: LbBspCpu, memory: Sequence[float] | None = None
) -> LbBspCpuState:
    """The state after an iteration at these speeds."""
    used = memory or [None] * len(speeds)
    return policy.decide(
        state,
        [
            Observation(size, size / speed, device_memory_share=share)
            for size, speed, share in zip(state.batch_sizes, speeds, used, strict=True)
        ],
    ).state


def history_of(*rows: Sequence[float]) -> SpeedHistory:
    """One row of speeds per worker, CPU and memory not measured."""
    speeds = np.array(rows, np.float64)
    nothing = np.full(speeds.shape, np.nan)
    return SpeedHistory(speeds, nothing, nothing)


def test_shares_follow_the_speeds() -> None:
    policy = LbBspCpu(Memoryless())
    state = after(policy.start(BatchTask.uniform(80, 4)), (10.0, 10.0, 20.0, 40.0), policy)
    assert state.batch_sizes == (10, 10, 20, 40)
    state = after(state, (40.0, 20.0, 10.0, 10.0), policy)
    assert state.batch_sizes == (40, 20, 10, 10)


def test_the_default_predictor_is_the_paper_s_average() -> None:
    assert BATCHING["lb-bsp-cpu"] == LbBspCpu(Ema(0.2))
    assert set(PREDICTORS) == {"ema", "memoryless"}


def test_the_average_weighs_the_newest_by_alpha() -> None:
    np.testing.assert_allclose(Ema(0.2).predict(history_of([10.0, 20.0], [5.0, 5.0])), [12.0, 5.0])
    np.testing.assert_allclose(Ema(1.0).predict(history_of([10.0, 20.0])), [20.0])
    nan = np.nan
    np.testing.assert_allclose(Ema(0.5).predict(history_of([nan, 10.0, 20.0], [nan] * 3)), [15.0, nan])
    with pytest.raises(PolicyError, match=r"alpha: got 0\.0"):
        Ema(0.0)


def test_the_history_is_bounded_and_enough_for_the_average() -> None:
    rng = np.random.default_rng(0)
    history, average = SpeedHistory.empty(1), 0.0
    for k in range(3 * HISTORY_ITERATIONS):
        time_s = float(rng.uniform(0.5, 2.0))
        history = history.with_observations([Observation(8, time_s)])
        average = 8 / time_s if k == 0 else 0.8 * average + 0.2 * 8 / time_s
    assert history.num_iterations == HISTORY_ITERATIONS
    assert Ema().predict(history)[0] == pytest.approx(average, rel=1e-5)


def test_a_worker_without_samples_keeps_its_last_speed() -> None:
    policy = LbBspCpu(Memoryless())
    task = BatchTask.uniform(12, 2, WorkerLimits(0))
    state = after(policy.start(task), (1.0, 2.0), policy)
    assert state.batch_sizes == (4, 8)
    state = policy.decide(state, [Observation(0, 0.0), Observation(12, 6.0)]).state
    assert state.batch_sizes == (4, 8)


def test_a_worker_never_seen_is_taken_to_be_an_average_one() -> None:
    policy = LbBspCpu()
    state = policy.start(BatchTask.uniform(12, 3, WorkerLimits(0)))
    seen = [Observation(4, 4.0), Observation(8, 2.67), Observation(0, 0.0)]
    assert policy.decide(state, seen).batch_sizes == (2, 6, 4)
    nothing = [Observation(0, 0.0)] * 3
    assert policy.decide(state, nothing).batch_sizes == (4, 4, 4)


def test_limits_and_full_memory_are_kept() -> None:
    policy = LbBspCpu(Memoryless())
    task = BatchTask(80, (WorkerLimits(1, 30), WorkerLimits(1), WorkerLimits(15)))
    assert after(policy.start(task), (90.0, 9.0, 1.0), policy).batch_sizes == (30, 35, 15)
    state = policy.start(BatchTask.uniform(30, 3))
    assert after(state, (8.0, 1.0, 1.0), policy, (0.97, 0.5, 0.5)).batch_sizes == (10, 10, 10)


def test_batches_grow_by_what_memory_leaves_and_come_back_after_a_slow_spell() -> None:
    policy = LbBspCpu(Memoryless())
    state = policy.start(BatchTask.uniform(30, 3))
    assert after(state, (8.0, 1.0, 1.0), policy, (0.9, 0.5, 0.5)).batch_sizes[0] == 11
    assert after(state, (8.0, 1.0, 1.0), policy, (0.5, 0.5, 0.5)).batch_sizes[0] == 19
    state = after(state, (1.0, 7.0, 7.0), policy, (0.97, 0.5, 0.5))
    assert state.batch_sizes == (2, 14, 14)
    assert after(state, (1.0, 1.0, 1.0), policy, (0.97, 0.7, 0.7)).batch_sizes == (10, 10, 10)
    assert after(state, (9.0, 1.0, 1.0), policy, (0.97, 0.7, 0.7)).batch_sizes == (10, 10, 10)


def test_another_predictor_goes_on_with_the_same_state() -> None:
    slow, quick = LbBspCpu(Ema(0.1)), LbBspCpu(Memoryless())
    state = slow.start(BatchTask.uniform(100, 2))
    for _ in range(5):
        state = after(state, (10.0, 10.0), slow)
    assert after(state, (10.0, 30.0), slow).batch_sizes == (45, 55)
    assert after(state, (10.0, 30.0), quick).batch_sizes == (25, 75)

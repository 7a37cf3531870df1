"""Alg. 1: shares in proportion to predicted speeds, whatever predicts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbal.config.schema.ensemble import BalanceConfig
from hpcbal.policies.batching import BATCHING, BatchTask, Observation, WorkerLimits
from hpcbal.policies.batching.lb_bsp_cpu import (
    HISTORY_ITERATIONS,
    LbBspCpu,
    LbBspCpuState,
    Memoryless,
    SpeedHistory,
    SpeedPredictor,
)
from hpcbal.policies.batching.min_max import split_min_max
from hpcbal.policies.batching.task import Decision
from hpcbal.policies.batching.time_curves import FloatArray, TimeCurves


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


def test_the_default_predictor_needs_no_fitting() -> None:
    assert BATCHING["lb-bsp-cpu"] == LbBspCpu(Memoryless())
    assert BalanceConfig().predictor == "memoryless"


def test_the_history_is_bounded() -> None:
    history = SpeedHistory.empty(1)
    for k in range(3 * HISTORY_ITERATIONS):
        history = history.with_observations([Observation(8, 1.0 + k)])
    assert history.num_iterations == HISTORY_ITERATIONS
    np.testing.assert_allclose(history.newest(2).speeds, [[8 / k, 8 / (1.0 + k)]])


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


class First(SpeedPredictor):
    """Expects the oldest speed that is remembered."""

    def predict(self, history: SpeedHistory) -> FloatArray:
        return history.speeds[:, 0]


def test_another_predictor_goes_on_with_the_same_state() -> None:
    first, last = LbBspCpu(First()), LbBspCpu(Memoryless())
    state = first.start(BatchTask.uniform(100, 2))
    for _ in range(5):
        state = after(state, (10.0, 10.0), first)
    assert after(state, (10.0, 30.0), first).batch_sizes == (50, 50)
    assert after(state, (10.0, 30.0), last).batch_sizes == (25, 75)


def decisions(
    policy: LbBspCpu, task: BatchTask, curves: TimeCurves, number: int, memory: Sequence[float | None]
) -> list[Decision[LbBspCpuState]]:
    """Of a group whose workers take the times of `curves`."""
    state, made = policy.start(task), []
    for _ in range(number):
        times_s = curves.seconds(state.batch_sizes).tolist()
        seen = [
            Observation(size, time_s if size else 0.0, device_memory_share=used)
            for size, time_s, used in zip(state.batch_sizes, times_s, memory, strict=True)
        ]
        made.append(policy.decide(state, seen))
        state = made[-1].state
    return made


UNMEASURED = (None,) * 4
# Alike but for the last one, which takes 300 s whatever its batch.
WITH_FLOOR = TimeCurves.of([(0.0, 0.0, 0.001)] * 3 + [(300.0, 0.0, 0.001)])


def test_a_worker_that_takes_minutes_for_a_single_sample_is_offered_for_removal() -> None:
    policy = LbBspCpu()
    made = decisions(policy, BatchTask.uniform(128, 4), WITH_FLOOR, 40, UNMEASURED)
    assert made[-1].batch_sizes == (43, 42, 42, 1)
    assert [decision.remove for decision in made[: policy.offer_after - 1]] == [None] * 19
    assert made[-1].remove == 3


def test_a_short_burst_of_other_load_costs_no_worker_its_place() -> None:
    policy = LbBspCpu(Memoryless())
    state = decisions(policy, BatchTask.uniform(128, 4), WITH_FLOOR, 19, UNMEASURED)[-1].state
    state = after(state, (1000.0, 1000.0, 1000.0, 1000.0), policy)
    assert (state.hopeless, state.batch_sizes) == (None, (32, 32, 32, 32))
    state = after(state, (1000.0, 1000.0, 1000.0, 0.1), policy)
    assert (state.hopeless, state.hopeless_iterations) == (3, 1)


@pytest.mark.parametrize(("used", "removed"), [(0.70, 3), (0.71, None), (0.94, None)])
def test_a_worker_is_kept_where_another_could_not_hold_an_even_share_without_it(
    used: float, removed: int | None
) -> None:
    """43 of 128 samples are an even share of three: 32 * 0.95 / 0.70 = 43.4."""
    limits = (WorkerLimits(1), WorkerLimits(1), WorkerLimits(1, 32), WorkerLimits(1))
    made = decisions(LbBspCpu(), BatchTask(128, limits), WITH_FLOOR, 60, (0.2, 0.2, 0.2, 0.2))
    assert made[-1].remove is None  # a limit of 32 is below an even share
    slowly = LbBspCpu(Memoryless())
    state = slowly.start(BatchTask.uniform(128, 4))
    for _ in range(60):  # worker 2 never has more than 32 samples
        seen = [Observation(n, t) for n, t in zip((48, 47, 32, 1), (0.1, 0.1, 0.1, 300.0), strict=True)]
        seen[2] = replace(seen[2], device_memory_share=used)
        decision = slowly.decide(state, seen)
        state = decision.state
    assert decision.remove == removed


def test_nobody_is_offered_while_a_worker_was_never_seen() -> None:
    policy = LbBspCpu(Memoryless())
    times_s = TimeCurves.of([(0.0, 0.0, 0.1), (0.0, 0.0, 0.1), (90.0, 0.0, 0.1), (0.0, 0.0, 0.1)])
    made = decisions(policy, BatchTask.uniform(3, 4), times_s, 40, UNMEASURED)
    assert made[0].state.hopeless is None
    assert all(d.remove is None for d in made if np.isnan(d.state.history.speeds[:, -1]).any())


@given(
    st.lists(st.floats(0.5, 4.0), min_size=1, max_size=5),
    st.floats(0.0, 40.0),
    st.integers(1, 12),
)
@settings(deadline=None, max_examples=20)
def test_a_worker_is_offered_only_where_the_best_split_without_it_is_faster(
    per_sample_s: list[float], floor_s: float, share: int
) -> None:
    """Oracle: the exact optimum of those that stay; times are known and steady."""
    count = len(per_sample_s) + 1
    task = BatchTask.uniform(share * count, count)
    curves = TimeCurves.of([*((0.0, 0.0, s) for s in per_sample_s), (floor_s, 0.0, 0.01)])
    policy = LbBspCpu(Memoryless())
    last = decisions(policy, task, curves, 30, (None,) * count)[-1]
    times_s = curves.seconds(last.batch_sizes)
    wanted_s = (1.0 - policy.removal_gain) * times_s.max()
    stay = np.flatnonzero(times_s <= wanted_s)
    rest = TimeCurves(curves.floor_s[stay], curves.launch_s[stay], curves.slope_s[stay])
    gains = bool(stay.size) and (
        rest.makespan(split_min_max(rest, BatchTask.uniform(task.num_samples, stay.size))) < wanted_s
    )
    if last.remove is not None:
        assert gains
        assert times_s[last.remove] > wanted_s
        assert last.batch_sizes[last.remove] == 1
    elif floor_s > 2 * times_s[stay].sum(initial=0.0):
        # Twice what the others take together: with a sample more each they are still sooner.
        assert not gains or last.batch_sizes[-1] > 1

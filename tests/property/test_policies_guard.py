"""Balancing hardly costs more than even shares, and the guard costs nothing where balancing gains."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbal.policies.batching import BatchingPolicy, BatchTask, Observation
from hpcbal.policies.batching.fitted import Fitted
from hpcbal.policies.batching.guard import Guard
from hpcbal.policies.batching.lb_bsp_cpu import LbBspCpu, Memoryless
from hpcbal.policies.batching.time_curves import FloatArray

NUM_STEPS = 400
MOST_OVER_EVEN = 1.05
# Steps from an observation to the step in which its decision acts; 0 is the next step.
LAGS = {"fitted": (0, 1, 3), "memoryless": (0, 1)}
POLICIES: dict[str, Any] = {
    "fitted": Fitted(),
    "memoryless": LbBspCpu(Memoryless()),
}


@dataclass
class World:
    """Workers whose times are (launch + seconds per sample * samples) * factor of the step.

    Attributes:
        launch_s, per_sample_s: shape (num_workers,).
        factors: shape (NUM_STEPS, num_workers).
    """

    task: BatchTask
    launch_s: FloatArray
    per_sample_s: FloatArray
    factors: FloatArray

    def times_s(self, step: int, sizes: tuple[int, ...]) -> FloatArray:
        times: FloatArray = (self.launch_s + self.per_sample_s * np.array(sizes)) * self.factors[step]
        return times


def world(kind: str, num_workers: int, seed: int, launch: float = 0.0) -> World:
    """Workers under one kind of load; `launch`: longest launch, in steps of even shares."""
    rng = np.random.default_rng((seed, num_workers))
    share = int(rng.integers(8, 65))
    unlike = 10 ** rng.uniform(0.0, 0.8, num_workers)
    factors = np.ones((NUM_STEPS, num_workers))
    if kind == "reversed":
        factors[::2], factors[1::2] = unlike, unlike[::-1]
    elif kind == "bursts":
        factor, period = (
            rng.uniform(2.0, 5.0),
            round(2.0 * 50.0 ** rng.random()),
        )  # 2 to 100, half of them below 14
        is_regular = rng.random() < 0.7
        step = 0
        while step < NUM_STEPS:
            end = step + (period if is_regular else int(rng.integers(2, 101)))
            factors[step:end, rng.integers(num_workers)] = factor
            step = end
    elif kind == "spikes":
        factors[rng.random(factors.shape) < 0.1] = 3.0
    elif kind == "steady":
        factors *= unlike
    elif kind == "drifting":
        phase, steps = rng.uniform(0.0, 2.0 * np.pi, num_workers), np.arange(NUM_STEPS)[:, None]
        factors *= unlike * (1.0 + 0.3 * np.sin(2.0 * np.pi * steps / 800.0 + phase))
    factors *= 1.0 + 0.02 * rng.standard_normal(factors.shape).clip(-3.0, 3.0)
    per_sample_s = np.full(num_workers, 0.01)
    launch_s = 0.01 * share * launch * rng.uniform(0.0, 1.0, num_workers)
    return World(BatchTask.uniform(share * num_workers, num_workers), launch_s, per_sample_s, factors)


def over_even(policy: BatchingPolicy[Any], workers: World, lag: int) -> float:
    """Time of all steps over that of as many even steps, noise included."""
    state = policy.start(workers.task)
    even = state.batch_sizes
    took_s = even_s = 0.0
    waiting: deque[list[Observation]] = deque()
    for step in range(NUM_STEPS):
        times_s = workers.times_s(step, state.batch_sizes)
        took_s += float(times_s.max())
        even_s += float(workers.times_s(step, even).max())
        waiting.append(list(map(Observation, state.batch_sizes, times_s.tolist())))
        if len(waiting) > lag:
            state = policy.decide(state, waiting.popleft()).state
    return took_s / even_s


@pytest.mark.parametrize("kind", ["reversed", "bursts", "spikes"])
@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@settings(deadline=None, max_examples=2)
def test_no_load_makes_balancing_cost_more_than_a_twentieth(
    name: str, kind: str, data: st.DataObject
) -> None:
    num_workers = data.draw(st.sampled_from([2, 3, 4, 8, 16] if name == "fitted" else [2, 3, 4, 8, 16, 32]))
    launch = data.draw(st.sampled_from([0.0, 1.0])) if name == "fitted" else 0.0
    lag = data.draw(st.sampled_from(LAGS[name]))
    workers = world(kind, num_workers, data.draw(st.integers(0, 9999)), launch)
    assert over_even(POLICIES[name], workers, lag) <= MOST_OVER_EVEN


def test_curves_that_are_far_off_do_not_hide_a_loss() -> None:
    """With launch times, 16 workers and reversals; curves that count for half let a loss of 7 % through."""
    assert over_even(POLICIES["fitted"], world("reversed", 16, 1, 1.0), 0) <= MOST_OVER_EVEN


@pytest.mark.parametrize("kind", ["steady", "drifting"])
@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@settings(deadline=None, max_examples=2)
def test_where_balancing_gains_the_guard_costs_nothing(name: str, kind: str, data: st.DataObject) -> None:
    num_workers = data.draw(st.sampled_from([2, 3, 4, 8, 16]))
    launch = data.draw(st.sampled_from([0.0, 1.0])) if name == "fitted" else 0.0
    lag = data.draw(st.sampled_from(LAGS[name]))
    workers = world(kind, num_workers, data.draw(st.integers(0, 9999)), launch)
    guarded = over_even(POLICIES[name], workers, lag)
    assert guarded <= 1.02 * over_even(replace(POLICIES[name], guard=None), workers, lag)


@pytest.mark.parametrize(
    ("name", "num_workers", "seed", "lag"),
    [("fitted", 8, 0, 3), ("fitted", 4, 1, 3), ("memoryless", 2, 2, 0)],
)
def test_without_a_guard_reversals_cost_more(name: str, num_workers: int, seed: int, lag: int) -> None:
    """So the other tests show the effect of the guard."""
    workers = world("reversed", num_workers, seed)
    assert over_even(replace(POLICIES[name], guard=None), workers, lag) > 1.15
    assert over_even(POLICIES[name], workers, lag) <= MOST_OVER_EVEN


@given(
    even=st.lists(st.integers(0, 40), min_size=2, max_size=8),
    data=st.data(),
)
@settings(deadline=None)
def test_the_guarded_split_lies_between_the_even_and_the_wanted_one(
    even: list[int], data: st.DataObject
) -> None:
    even[0] += 1
    guard = Guard()
    state = guard.start(tuple(even))
    for _ in range(data.draw(st.integers(1, 6))):
        wanted = tuple(data.draw(st.permutations(even)))
        seen = [
            Observation(size, data.draw(st.floats(1e-3, 1e3)) if size else 0.0)
            for size in data.draw(st.sampled_from([tuple(even), wanted]))
        ]
        state, split = guard.admit(state, seen, wanted)
        assert sum(split) == sum(even)
        assert all(min(e, w) <= s <= max(e, w) for e, w, s in zip(even, wanted, split, strict=True))
        assert abs(state.credit) <= max(guard.first_credit, guard.horizon * sum(even) + 1.0)

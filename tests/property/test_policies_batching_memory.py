"""Batches stay within the measured memory, and a slow phase leaves no worker without samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbal.policies.batching import BATCHING, BatchingPolicy, BatchTask, Observation, WorkerLimits
from hpcbal.policies.batching.guard import most_in_memory, surely_in_memory
from hpcbal.policies.batching.lb_bsp_gpu import LbBspGpu, PhaseSettings
from hpcbal.policies.batching.min_max import split_min_max
from hpcbal.policies.batching.task import BatchState
from hpcbal.policies.batching.time_curves import FloatArray, TimeCurves

# Alg. 2 with short windows, and the number of samples that it may move at once.
FAST_ALG2 = LbBspGpu(PhaseSettings(5, 2), PhaseSettings(1, 3))
POLICIES: Mapping[str, BatchingPolicy[Any]] = {
    "fitted": BATCHING["fitted"],
    "lb-bsp-cpu": BATCHING["lb-bsp-cpu"],
    "lb-bsp-gpu": FAST_ALG2,
}


@dataclass
class Slots:
    """Emulated slots: their memory has a fixed part and a part per sample, and is never given back.

    Attributes:
        speeds: samples/s, shape (num_slots,).
        fixed, per_sample: shares of the memory.
        peak: share of each slot's memory in use.
        largest: most samples that each has processed.
    """

    speeds: FloatArray
    fixed: float
    per_sample: float
    peak: FloatArray
    largest: FloatArray
    rng: np.random.Generator

    def process(self, state: BatchState, slow: int | None) -> list[Observation]:
        sizes = np.array(state.batch_sizes, np.float64)
        self.peak = np.maximum(self.peak, self.fixed + self.per_sample * sizes)
        self.largest = np.maximum(self.largest, sizes)
        factor = np.where(np.arange(sizes.size) == slow, 20.0, 1.0)
        times_s = factor * self.seconds(sizes) * (1 + 0.01 * self.rng.uniform(-1, 1, sizes.size))
        return [
            Observation(int(size), float(time_s), device_memory_share=min(1.0, float(used)))
            for size, time_s, used in zip(sizes, times_s, self.peak, strict=True)
        ]

    def seconds(self, sizes: FloatArray) -> FloatArray:
        return 0.005 + sizes / self.speeds

    def longest_s(self, sizes: Sequence[int]) -> float:
        return float(self.seconds(np.array(sizes, np.float64)).max())


@st.composite
def groups(draw: st.DrawFn, least_share: int = 4) -> tuple[BatchTask, Slots]:
    """Slots whose memory holds an even share with 5 % to spare."""
    count = draw(st.integers(2, 5))
    share = draw(st.integers(least_share, 64))
    speeds = np.array([draw(st.sampled_from([250.0, 500.0, 1000.0])) for _ in range(count)])
    at_even_share = draw(st.floats(0.1, 0.95))
    fixed = at_even_share * draw(st.floats(0.0, 1.0))
    per_sample = (at_even_share - fixed) / share
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    nothing = np.zeros(count)
    slots = Slots(speeds, fixed, per_sample, nothing, nothing, rng)
    return BatchTask.uniform(share * count, count), slots


def go_on(
    policy: BatchingPolicy[Any], state: BatchState, slots: Slots, number: int, slow: int | None = None
) -> BatchState:
    for _ in range(number):
        state = policy.decide(state, slots.process(state, slow)).state
    return state


@pytest.mark.parametrize("name", POLICIES)
@given(group=groups(), slow=st.integers(0, 1))
@settings(deadline=None, max_examples=12)
def test_no_batch_takes_more_memory_than_the_guard_allows(
    name: str, group: tuple[BatchTask, Slots], slow: int
) -> None:
    task, slots = group
    policy = POLICIES[name]
    state = policy.start(task)
    # A group that is slow and recovers: samples move one way and back.
    for k in range(60):
        seen = slots.process(state, slow if 20 <= k < 40 else None)
        decided = policy.decide(state, seen).state
        for i, (now, then) in enumerate(zip(state.batch_sizes, decided.batch_sizes, strict=True)):
            allowed = surely_in_memory if name == "lb-bsp-gpu" else most_in_memory
            assert then <= max(now, allowed(seen[i], int(slots.largest[i]), task.num_samples))
            assert slots.fixed + slots.per_sample * (then - 1) <= 0.95 + 1e-9
        state = decided


@given(
    st.lists(st.tuples(st.floats(0.0, 0.9), st.floats(0.0, 1.0)), min_size=2, max_size=6),
    st.integers(1, 64),
    st.data(),
)
@settings(deadline=None, max_examples=50)
def test_alg_2_never_fills_a_memory_that_grows_linearly_whatever_the_speeds(
    memories: list[tuple[float, float]], share: int, data: st.DataObject
) -> None:
    """Workers hold even shares with 5 % to spare; the policy does not know how much of that is fixed."""
    count = len(memories)
    fixed = np.array([part * at_even for part, at_even in memories])
    per_sample = (np.minimum([at_even for _, at_even in memories], 0.95) - fixed).clip(0.0) / share
    state = FAST_ALG2.start(BatchTask.uniform(share * count, count))
    peak = np.zeros(count)
    period = data.draw(st.sampled_from([7, 40]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    speeds = 1.0 + rng.integers(0, 4, count)
    for k in range(120):
        if k % period == 0:
            speeds = 1.0 + rng.integers(0, 4, count)
        sizes = np.array(state.batch_sizes)
        peak = np.maximum(peak, fixed + per_sample * sizes)
        assert (peak <= 1.0 + 1e-9).all()
        seen = [
            Observation(int(n), float(s), device_memory_share=float(min(1.0, used)))
            for n, s, used in zip(sizes, sizes / speeds, peak, strict=True)
        ]
        state = FAST_ALG2.decide(state, seen).state


@pytest.mark.parametrize("name", ["fitted", "lb-bsp-gpu"])
@given(group=groups(), data=st.data())
@settings(deadline=None, max_examples=12)
def test_a_group_without_its_straggler_has_enough_memory(
    name: str, group: tuple[BatchTask, Slots], data: st.DataObject
) -> None:
    """One of the others has another memory, filled by its samples alone."""
    task, slots = group
    share = task.num_samples // task.num_workers
    limit = data.draw(st.none() | st.integers(share, task.num_samples))
    task = BatchTask.uniform(task.num_samples, task.num_workers, WorkerLimits(1, limit))
    straggler, other = data.draw(st.permutations(range(task.num_workers)))[:2]
    others_per_sample = data.draw(st.floats(0.1, 0.95)) / share
    even = -(-task.num_samples // (task.num_workers - 1))
    state, offered = POLICIES[name].start(task), []
    for _ in range(250 if name == "lb-bsp-gpu" else 80):
        seen = slots.process(state, None)
        seen[straggler] = replace(seen[straggler], processing_s=seen[straggler].processing_s + 900.0)
        used = min(1.0, others_per_sample * float(slots.largest[other]))
        seen[other] = replace(seen[other], device_memory_share=used)
        decision = POLICIES[name].decide(state, seen)
        state = decision.state
        if decision.remove is not None:
            offered.append(decision.remove)
            assert limit is None or limit >= even
            needed = slots.fixed + slots.per_sample * np.full(task.num_workers, even - 1)
            needed[other] = others_per_sample * (even - 1)
            can = (needed <= 0.95 + 1e-9) | (slots.largest >= even)
            assert np.delete(can, straggler).all()
    assert set(offered) <= {straggler}
    if limit is None and max(slots.fixed + slots.per_sample * share, others_per_sample * share) <= 0.4:
        assert offered  # twice as many samples fit, whatever part of that is fixed


@pytest.mark.parametrize("name", POLICIES)
@given(group=groups(least_share=16), data=st.data())
@settings(deadline=None, max_examples=6)
def test_after_a_slow_phase_the_group_is_as_fast_as_before(
    name: str, group: tuple[BatchTask, Slots], data: st.DataObject
) -> None:
    task, slots = group
    policy = POLICIES[name]
    state = go_on(policy, policy.start(task), slots, 200)
    before_s = slots.longest_s(state.batch_sizes)
    slow = data.draw(st.integers(0, task.num_workers - 1))
    state = go_on(policy, state, slots, 100, slow)
    state = go_on(policy, state, slots, 1500 if name == "lb-bsp-gpu" else 150)
    assert slots.longest_s(state.batch_sizes) <= 1.15 * before_s


@given(
    st.lists(st.sampled_from([250.0, 500.0, 1000.0, 2000.0]), min_size=2, max_size=6),
    st.integers(4, 32),
    st.floats(0.5, 0.94),
    st.integers(0, 2**32 - 1),
)
@settings(deadline=None, max_examples=6)
def test_if_weights_fill_the_memory_small_batches_still_find_the_best_split(
    speeds: list[float], share: int, fixed: float, seed: int
) -> None:
    task = BatchTask.uniform(share * len(speeds), len(speeds))
    nothing = np.zeros(len(speeds))
    slots = Slots(np.array(speeds), fixed, 0.0, nothing, nothing, np.random.default_rng(seed))
    state = go_on(POLICIES["fitted"], POLICIES["fitted"].start(task), slots, 250)
    best = split_min_max(TimeCurves.of([(0.0, 0.005, 1 / speed) for speed in speeds]), task)
    assert slots.longest_s(state.batch_sizes) <= 1.1 * slots.longest_s(best)


@given(st.none() | st.floats(0, 1, exclude_min=True), st.integers(0, 10_000), st.integers(0, 10_000))
def test_processed_batches_stay_allowed_and_growth_is_possible_while_memory_is_free(
    used: float | None, largest: int, most: int
) -> None:
    seen = Observation(1, 1.0, device_memory_share=used)
    allowed = most_in_memory(seen, largest, most)
    assert min(largest, most) <= allowed <= most
    if used is None:
        assert allowed == most
    elif seen.memory_is_full:
        assert allowed <= largest
    else:
        assert allowed >= min(largest + 1, most)
        assert allowed <= largest + 1 or used * allowed <= (0.95 + 1e-9) * largest

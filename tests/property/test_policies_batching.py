"""Splits keep the sum and the limits, and the exact split is as good as any other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hpcbal.policies.batching import BATCHING, BatchTask, Observation, WorkerLimits, scale_shares
from hpcbal.policies.batching.min_max import apportion, split_min_max
from hpcbal.policies.batching.time_curves import TimeCurves

weights = st.floats(0.0, 1e9)
seconds = st.floats(0.0, 10.0)
# Whole thousandths make equal times likely, and so ties.
coarse_seconds = st.integers(0, 50).map(lambda n: n / 1000)


@st.composite
def tasks(draw: st.DrawFn, max_workers: int = 8, max_samples: int = 300) -> BatchTask:
    count = draw(st.integers(1, max_workers))
    limits = []
    for _ in range(count):
        least = draw(st.integers(0, max_samples // (2 * count)))
        most = draw(st.none() | st.integers(least, max_samples))
        limits.append(WorkerLimits(least, most))
    least = max(1, sum(limit.min_samples for limit in limits))
    unlimited = any(limit.max_samples is None for limit in limits)
    most = max_samples if unlimited else sum(limit.max_samples or 0 for limit in limits)
    assume(least <= most)
    return BatchTask(draw(st.integers(least, max(least, min(most, max_samples)))), tuple(limits))


@st.composite
def curves(draw: st.DrawFn, num_workers: int, values: st.SearchStrategy[float] = seconds) -> TimeCurves:
    return TimeCurves.of([(draw(values), draw(values), draw(values)) for _ in range(num_workers)])


def assert_keeps(task: BatchTask, sizes: Sequence[int]) -> None:
    assert sum(sizes) == task.num_samples
    assert all(
        least <= size <= most for least, size, most in zip(task.minima, sizes, task.maxima, strict=True)
    )


def all_splits(task: BatchTask) -> Iterator[tuple[int, ...]]:
    """Brute force: every split that keeps the limits."""
    ranges = [range(low, high + 1) for low, high in zip(task.minima, task.maxima, strict=True)]
    for head in itertools.product(*ranges[:-1]):
        last = task.num_samples - sum(head)
        if last in ranges[-1]:
            yield (*head, last)


@given(tasks(), st.data())
@settings(deadline=None)
def test_rounding_keeps_the_sum_and_the_limits(task: BatchTask, data: st.DataObject) -> None:
    given_weights = data.draw(st.lists(weights, min_size=task.num_workers, max_size=task.num_workers))
    sizes = apportion(task.num_samples, given_weights, task.minima, task.maxima)
    assert_keeps(task, sizes)
    assert sizes == apportion(task.num_samples, given_weights, task.minima, task.maxima)


@given(
    st.integers(0, 100_000),
    st.lists(weights, min_size=1, max_size=40),
    st.integers(0, 5),
    st.none() | st.integers(1, 900),
)
@settings(deadline=None)
def test_a_larger_weight_never_gets_fewer_samples(
    num_samples: int, given_weights: list[float], least: int, most: int | None
) -> None:
    count = len(given_weights)
    assume(least * count <= num_samples and (most is None or least <= most <= num_samples <= most * count))
    sizes = apportion(num_samples, given_weights, [least] * count, None if most is None else [most] * count)
    pairs = sorted(zip(given_weights, sizes, strict=True), key=lambda pair: (pair[0], -pair[1]))
    for (lighter, fewer), (heavier, more) in itertools.pairwise(pairs):
        assert lighter == heavier or fewer <= more


@given(st.integers(0, 100_000), st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=40))
@settings(deadline=None)
def test_without_limits_rounding_moves_less_than_one_sample(num_samples: int, given: list[float]) -> None:
    total = math.fsum(given)
    for size, weight in zip(apportion(num_samples, given), given, strict=True):
        assert abs(size - num_samples * weight / total) < 1 + 1e-6


@given(st.lists(st.integers(0, 500), min_size=1, max_size=20), st.data())
@settings(deadline=None)
def test_a_smaller_step_reduces_every_share_and_a_full_one_none(
    batch_sizes: list[int], data: st.DataObject
) -> None:
    num_samples = data.draw(st.integers(0, sum(batch_sizes)))
    shares = scale_shares(num_samples, batch_sizes)
    assert sum(shares) == num_samples
    assert all(0 <= share <= size for share, size in zip(shares, batch_sizes, strict=True))
    assert scale_shares(sum(batch_sizes), batch_sizes) == tuple(batch_sizes)


@given(tasks(max_workers=4, max_samples=16), st.data(), st.sampled_from([seconds, coarse_seconds]))
@settings(deadline=None, max_examples=100)
def test_no_split_of_up_to_four_workers_is_better(
    task: BatchTask, data: st.DataObject, values: st.SearchStrategy[float]
) -> None:
    workers = data.draw(curves(task.num_workers, values))
    sizes = split_min_max(workers, task)
    assert_keeps(task, sizes)
    assert workers.makespan(sizes) == min(workers.makespan(split) for split in all_splits(task))


@given(tasks(max_workers=3, max_samples=12), st.data())
@settings(deadline=None, max_examples=100)
def test_behind_the_slowest_the_others_are_balanced_too(task: BatchTask, data: st.DataObject) -> None:
    workers = data.draw(curves(task.num_workers))

    def from_the_slowest(split: Sequence[int]) -> list[float]:
        return sorted(workers.seconds(split).tolist(), reverse=True)

    sizes = split_min_max(workers, task)
    late = workers.seconds(task.minima) >= workers.makespan(sizes)
    best = min(map(from_the_slowest, all_splits(task)))
    assert from_the_slowest(sizes)[: int(late.sum()) + 1] == best[: int(late.sum()) + 1]


@given(tasks(max_workers=40, max_samples=5000), st.data())
@settings(deadline=None)
def test_among_many_workers_moving_one_sample_never_helps(task: BatchTask, data: st.DataObject) -> None:
    workers = data.draw(curves(task.num_workers))
    sizes = np.array(split_min_max(workers, task))
    assert_keeps(task, sizes.tolist())
    # Optimal, because the workers together finish too few samples before the makespan.
    before = np.nextafter(workers.makespan(sizes), -np.inf)
    minima, maxima = np.array(task.minima), np.array(task.maxima)
    finished = workers.within(float(before), minima, maxima)
    assert workers.makespan(minima) > before or finished.sum() < task.num_samples


@given(tasks(), st.data())
@settings(deadline=None)
def test_a_faster_worker_never_makes_the_group_slower(task: BatchTask, data: st.DataObject) -> None:
    workers = data.draw(curves(task.num_workers))
    which = data.draw(st.integers(0, task.num_workers - 1))
    factor = np.where(np.arange(task.num_workers) == which, data.draw(st.floats(0.0, 1.0)), 1.0)
    faster = TimeCurves(workers.floor_s * factor, workers.launch_s * factor, workers.slope_s * factor)
    assert faster.makespan(split_min_max(faster, task)) <= workers.makespan(split_min_max(workers, task))


@pytest.mark.parametrize("name", BATCHING)
@given(task=tasks(), data=st.data())
@settings(deadline=None, max_examples=20)
def test_every_policy_keeps_the_sum_and_the_limits_whatever_it_sees(
    name: str, task: BatchTask, data: st.DataObject
) -> None:
    policy = BATCHING[name]
    state = policy.start(task)
    assert_keeps(task, state.batch_sizes)
    even = largest = state.batch_sizes
    for _ in range(data.draw(st.integers(1, 12))):
        delayed = data.draw(st.sampled_from([state.batch_sizes, even]))
        sizes = scale_shares(data.draw(st.integers(0, task.num_samples)), delayed)
        sizes = data.draw(st.sampled_from([sizes, delayed]))
        seen = [
            Observation(
                size,
                data.draw(st.floats(1e-6, 1e3)) if size else 0.0,
                cpu_share=data.draw(st.none() | st.floats(0, 1)),
                memory_share=data.draw(st.none() | st.floats(0, 1)),
                device_memory_share=data.draw(st.none() | st.floats(0, 1)),
            )
            for size in sizes
        ]
        decision = policy.decide(state, seen)
        again = policy.decide(state, seen)
        assert (decision.batch_sizes, decision.remove) == (again.batch_sizes, again.remove)
        assert_keeps(task, decision.batch_sizes)
        assert decision.remove is None or 0 <= decision.remove < task.num_workers
        largest = tuple(map(max, largest, sizes))
        for i, observation in enumerate(seen):
            if observation.memory_is_full:
                assert decision.batch_sizes[i] <= max(state.batch_sizes[i], largest[i])
        state = decision.state

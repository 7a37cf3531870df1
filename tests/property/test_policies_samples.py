"""Samples of unequal size: every sample exactly once, whatever sizes, workers, speeds and limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbal.errors import PolicyError
from hpcbal.policies.batching import BatchTask
from hpcbal.policies.batching.min_max import level_work, split_min_max
from hpcbal.policies.batching.time_curves import FloatArray, TimeCurves
from hpcbal.policies.samples.chronica import EpochQueues, Indicators, shuffle
from hpcbal.policies.samples.task import SampleTask, StepCost
from hpcbal.policies.samples.within_batch import deal, deal_by_weight, order_in_windows

SIZES = st.lists(st.floats(0.01, 1e4), min_size=1, max_size=60).map(np.array)
SLOPES = st.lists(st.floats(1e-3, 10), min_size=1, max_size=8).map(np.array)
WORKERS = st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10), st.floats(1e-3, 10)), min_size=1, max_size=8)


@given(SIZES, SLOPES, st.sampled_from(StepCost), st.data())
@settings(deadline=None)
def test_a_dealt_step_keeps_its_limits_and_is_no_worse_than_one_worker(
    sizes: FloatArray, slopes: FloatArray, cost: StepCost, data: st.DataObject
) -> None:
    count = len(slopes)
    most = data.draw(
        st.none() | st.lists(st.integers(len(sizes) // count + 1, 80), min_size=count, max_size=count)
    )
    room = data.draw(st.none() | st.lists(st.floats(1e4, 1e6), min_size=count, max_size=count))
    task = SampleTask(
        sizes,
        slopes,
        cost,
        None if most is None else np.array(most),
        None if room is None else np.array(room),
    )
    try:
        rank_of = deal(task)
    except PolicyError:
        assert room is not None, "without limits of work every step can be dealt"
        return
    assert rank_of.shape == sizes.shape
    assert rank_of.min() >= 0
    counts = np.bincount(rank_of, minlength=count)
    assert len(counts) == count
    assert most is None or (counts <= most).all()
    assert room is None or (task.work(rank_of) <= np.array(room) * (1 + 1e-9)).all()
    assert len(sizes) < count or counts.all() or most is not None or room is not None
    if most is None and room is None and count > 1:
        alone = min(task.seconds(np.full(len(sizes), worker)).max() for worker in range(count))
        one_each = float(slopes.max() * sizes.max())
        assert task.seconds(rank_of).max() <= max(alone, one_each) * (1 + 1e-9)


@given(SIZES, st.integers(1, 5), st.integers(1, 20), st.integers(0, 2**32), st.data())
@settings(deadline=None)
def test_an_epoch_of_chronica_draws_every_usable_sample_once_after_any_shuffle(
    sizes: FloatArray, num_workers: int, batch_size: int, seed: int, data: st.DataObject
) -> None:
    owner = np.array(
        data.draw(st.lists(st.integers(-1, num_workers - 1), min_size=len(sizes), max_size=len(sizes)))
    )
    slopes = np.array(data.draw(st.lists(st.floats(1e-3, 10), min_size=num_workers, max_size=num_workers)))
    indicators = Indicators(slopes, slopes)
    shuffled = shuffle(sizes, owner, indicators)
    assert np.array_equal(shuffled < 0, owner < 0)
    assert shuffled.max(initial=-1) < num_workers
    queues = EpochQueues(sizes, shuffled, num_workers, [seed])
    drawn: list[int] = []
    while queues.num_left:
        step = queues.draw(indicators, batch_size)
        assert sum(map(len, step)) == batch_size or not queues.num_left
        drawn += np.concatenate(step).tolist()
    assert sorted(drawn) == np.flatnonzero(owner >= 0).tolist()


@given(SIZES, st.integers(1, 12), st.integers(1, 6), st.integers(0, 2**32), st.integers(0, 9))
@settings(deadline=None)
def test_an_order_in_windows_is_a_permutation_that_the_seed_decides(
    sizes: FloatArray, batch_size: int, num_batches: int, seed: int, pass_index: int
) -> None:
    order = order_in_windows(sizes, batch_size, num_batches, seed, pass_index)
    assert sorted(order.tolist()) == list(range(len(sizes)))
    assert np.array_equal(order, order_in_windows(sizes, batch_size, num_batches, seed, pass_index))


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.sampled_from(StepCost), st.floats(0.1, 100))
@settings(deadline=None)
def test_with_equal_sizes_weights_are_counts(counts: list[int], cost: StepCost, size: float) -> None:
    """The limit of load balancing: what it decides is what a worker gets."""
    if not sum(counts):
        return
    rank_of = deal_by_weight(np.full(sum(counts), size), np.array(counts, float), cost)
    assert np.bincount(rank_of, minlength=len(counts)).tolist() == counts


@given(WORKERS, st.integers(1, 200))
@settings(deadline=None)
def test_level_work_is_no_later_than_the_best_split_of_whole_samples(
    workers: list[tuple[float, float, float]], num_samples: int
) -> None:
    task, curves = BatchTask.uniform(num_samples, len(workers)), TimeCurves.of(workers)
    work = level_work(curves, task)
    assert work.sum() == pytest.approx(num_samples)
    assert curves.makespan(work) <= curves.makespan(split_min_max(curves, task)) * (1 + 1e-6)

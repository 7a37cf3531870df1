"""Samples of unequal size: who takes which, in which order, and the paper's scheduler and shuffler."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from hpcbal.errors import PolicyError
from hpcbal.policies.batching import BatchTask
from hpcbal.policies.batching.min_max import split_min_max
from hpcbal.policies.batching.time_curves import TimeCurves
from hpcbal.policies.samples.chronica import EpochQueues, Indicators, generated_sizes, shuffle
from hpcbal.policies.samples.task import SampleTask, SampleTooLargeError, StepCost, checked_sizes, imbalance
from hpcbal.policies.samples.within_batch import deal, deal_by_weight, order_in_windows


def task_of(
    sizes: Sequence[float],
    slopes: Sequence[float],
    cost: StepCost = StepCost.SUM,
    max_samples: Sequence[int] | None = None,
    max_work: Sequence[float] | None = None,
) -> SampleTask:
    return SampleTask(
        np.array(sizes, float),
        np.array(slopes, float),
        cost,
        None if max_samples is None else np.array(max_samples),
        None if max_work is None else np.array(max_work, float),
    )


def makespan(task: SampleTask) -> float:
    return float(task.seconds(deal(task)).max())


def least_makespan(task: SampleTask) -> float:
    """By trying every assignment that leaves no worker idle."""
    least = np.inf
    for assignment in itertools.product(range(task.num_workers), repeat=len(task.sizes)):
        rank_of = np.array(assignment)
        counts = np.bincount(rank_of, minlength=task.num_workers)
        if counts.all():  # each worker gets a sample
            least = min(least, float(task.seconds(rank_of).max()))
    return least


# ---- within a batch ------------------------------------------------------------------------


@pytest.mark.parametrize("cost", StepCost)
@pytest.mark.parametrize("slopes", [(1.0, 1.0), (1.0, 1.0, 1.0), (1.0, 2.0), (0.5, 1.0, 4.0)])
def test_a_dealt_batch_takes_little_longer_than_the_best_of_all_assignments(
    cost: StepCost, slopes: tuple[float, ...]
) -> None:
    random = np.random.default_rng(3)
    ratios = []
    for _ in range(25):
        task = task_of(random.integers(1, 60, 7).tolist(), slopes, cost)
        ratios.append(makespan(task) / least_makespan(task))
    assert min(ratios) == 1.0
    assert max(ratios) <= 4 / 3, "Graham's bound for equal workers; these unlike ones keep it too"
    assert np.mean(ratios) <= 1.08


def dealt_one_by_one(task: SampleTask) -> np.ndarray:
    work, rank_of = np.zeros(task.num_workers), np.empty(len(task.sizes), np.int64)
    for sample in np.argsort(-task.sizes, kind="stable"):
        rank_of[sample] = np.argmin(task.slope_s * (work + task.sizes[sample]))
        work[rank_of[sample]] += task.sizes[sample]
    return rank_of


def test_each_sample_goes_to_the_worker_that_then_finishes_first() -> None:
    task = task_of(generated_sizes(64, 32.0, seed=1).tolist(), (1.0, 1.0, 2.0, 0.7))
    assert deal(task).tolist() == dealt_one_by_one(task).tolist()


@pytest.mark.parametrize("slopes", [[1.0] * 40, np.linspace(1.0, 2.0, 40).tolist()])
def test_many_workers_are_dealt_samples_in_rounds_that_lose_little(slopes: list[float]) -> None:
    task = task_of(generated_sizes(400, 32.0, seed=1).tolist(), slopes)
    assert makespan(task) <= 1.01 * float(task.seconds(dealt_one_by_one(task)).max())


@pytest.mark.parametrize("slopes", [(1.0, 1.0, 1.0), (1.0, 2.0, 3.0), (0.2, 1.0, 1.0)])
@pytest.mark.parametrize("cost", StepCost)
def test_equal_sizes_are_split_as_the_counts_of_load_balancing(
    cost: StepCost, slopes: tuple[float, ...]
) -> None:
    task = task_of([4.0] * 24, slopes, cost)
    curves = TimeCurves.of([(0.0, 0.0, 4.0 * slope) for slope in slopes])
    counts = np.bincount(deal(task), minlength=3)
    best = curves.makespan(split_min_max(curves, BatchTask.uniform(24, 3)))
    assert curves.makespan(counts) == pytest.approx(best)


def test_equal_workers_get_equal_work_in_unequal_numbers() -> None:
    task = task_of([9.0, 3.0, 3.0, 3.0], (1.0, 1.0))
    rank_of = deal(task)
    assert sorted(np.bincount(rank_of).tolist()) == [1, 3]
    assert task.work(rank_of).tolist() == [9.0, 9.0]


@pytest.mark.parametrize("cost", StepCost)
def test_the_work_of_all_workers_is_that_of_each(cost: StepCost) -> None:
    sizes, rank_of = np.array([9.0, 3.0, 2.0, 5.0, 1.0]), np.array([2, 0, 2, 2, 0])
    each = [cost.of(sizes[rank_of == worker]) for worker in range(4)]
    assert cost.of_workers(sizes, rank_of, 4).tolist() == each


def test_padded_shares_hold_samples_of_similar_size() -> None:
    task = task_of([10.0, 1.0, 1.0, 10.0, 1.0, 1.0], (1.0, 1.0), StepCost.PADDED)
    assert makespan(task) == 20.0
    by_worker = [task.sizes[deal(task) == worker].tolist() for worker in range(2)]
    assert sorted(by_worker) == [[1.0] * 4, [10.0, 10.0]]


def test_a_slow_worker_keeps_one_sample_so_that_it_stays_measured() -> None:
    task = task_of([5.0] * 8, (1.0, 1000.0))
    assert np.bincount(deal(task)).tolist() == [7, 1]
    fewer_than_workers = task_of([5.0], (1.0, 1000.0))
    assert np.bincount(deal(fewer_than_workers), minlength=2).tolist() == [1, 0]


@pytest.mark.parametrize("cost", StepCost)
def test_limits_of_samples_and_of_work_are_kept(cost: StepCost) -> None:
    sizes = [30.0, 20.0, 5.0, 5.0, 4.0, 4.0]
    task = task_of(sizes, (0.1, 1.0, 1.0), cost, max_samples=(3, 2, 4), max_work=(31.0, 45.0, 30.0))
    rank_of = deal(task)
    assert (np.bincount(rank_of, minlength=3) <= task.max_samples).all()
    assert (task.work(rank_of) <= task.max_work).all()


@pytest.mark.parametrize("num_workers", [2, 40])
def test_work_that_fits_only_if_workers_are_filled_is_dealt(num_workers: int) -> None:
    """Longest first puts a 3 on each worker, and then has no room for the last 2."""
    sizes = np.array([2.0, 3.0, 2.0, 3.0, 2.0] * (num_workers // 2))
    rank_of = deal_by_weight(sizes, np.ones(num_workers), StepCost.SUM, max_work=6.0)
    assert np.bincount(rank_of, sizes, num_workers).tolist() == [6.0] * num_workers


@pytest.mark.parametrize("num_pairs", [1, 20])
def test_work_that_fits_only_in_equal_parts_is_dealt_to_workers_of_unlike_speed(num_pairs: int) -> None:
    """First fit fills the fast worker with 9 + 7, and the other one has no room for 6 + 5 + 4 + 4."""
    sizes, weights = np.array([9.0, 7.0, 6.0, 5.0, 4.0, 4.0] * num_pairs), np.array([0.32, 0.68] * num_pairs)
    rank_of = deal_by_weight(sizes, weights, StepCost.SUM, max_work=18.0)
    assert np.bincount(rank_of, sizes).max() <= 18.0
    without = deal_by_weight(sizes, np.append(0.0, weights), StepCost.SUM, max_work=18.0)
    assert 0 not in without
    assert np.bincount(without, sizes).max() <= 18.0


@pytest.mark.parametrize("num_workers", [2, 40])
@pytest.mark.parametrize("cost", StepCost)
def test_sizes_may_differ_by_any_factor(cost: StepCost, num_workers: int) -> None:
    rank_of = deal_by_weight(np.array([1e149, 1e-300, 1e-300]), np.full(num_workers, 0.01), cost)
    assert (rank_of[1:] != rank_of[0]).all()


def test_a_sample_that_fits_nowhere_is_named() -> None:
    with pytest.raises(SampleTooLargeError, match=r"place 2 .* has size 70.*takes more than 60"):
        task_of([10.0, 20.0, 70.0], (1.0, 1.0), max_work=(50.0, 60.0))
    with pytest.raises(SampleTooLargeError):
        task_of([10.0, 20.0, 55.0], (1.0, 1.0), max_samples=(3, 0), max_work=(50.0, 60.0))


@pytest.mark.parametrize("cost", StepCost)
def test_a_batch_that_does_not_fit_as_a_whole_is_refused(cost: StepCost) -> None:
    with pytest.raises(PolicyError, match="does not fit on 2 workers"):
        deal(task_of([10.0] * 5, (1.0, 1.0), cost, max_work=(20.0, 20.0)))
    with pytest.raises(PolicyError, match="its workers take at most 4"):
        task_of([10.0] * 5, (1.0, 1.0), cost, max_samples=(2, 2))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([1.0, 0.0], "size of sample 1: got 0.0"),
        ([np.nan], "size of sample 0"),
        ([[1.0]], r"shape \(1, 1\)"),
        ([1.0, 6e149], r"size of sample 1, the largest: got 6e\+149, allowed: at most 5e\+149 with 2"),
    ],
)
def test_wrong_sizes_are_refused(sizes: object, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        checked_sizes(sizes)  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="each of the 3 samples"):
        checked_sizes([1.0], 3)


# ---- orders --------------------------------------------------------------------------------


def test_a_window_holds_each_sample_once_and_epochs_differ() -> None:
    sizes = generated_sizes(1000, 64.0, seed=0)
    first, again, next_pass = (order_in_windows(sizes, 16, 4, 7, number) for number in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, next_pass)
    assert np.array_equal(np.sort(first), np.arange(1000))
    for start in range(0, 960, 64):
        assert np.array_equal(np.sort(first[start : start + 64]), np.arange(start, start + 64))
    assert first[992:].tolist() == list(range(992, 1000)), "the last batch is not full and stays last"


def test_a_window_of_one_batch_keeps_the_order() -> None:
    assert order_in_windows(generated_sizes(20, 9.0, 0), 4, 1, 0, 0).tolist() == list(range(20))
    with pytest.raises(PolicyError, match="got 0 batches of 4"):
        order_in_windows(generated_sizes(20, 9.0, 0), 4, 0, 0, 0)


def test_generated_sizes_are_positive_and_keep_the_mean() -> None:
    for dif in (0.0, 4.0, 64.0, 500.0):
        sizes = generated_sizes(5000, dif, seed=0)
        assert sizes.min() > 0
        assert sizes.mean() == pytest.approx(45.0)
    assert imbalance(generated_sizes(50_000, 8.0, 0)) == pytest.approx(8.0, rel=0.02)
    assert imbalance(np.array([3.0])) == 0.0


# ---- CHRONICA ------------------------------------------------------------------------------


def even_indicators(num_workers: int, slopes: Sequence[float] | None = None) -> Indicators:
    return Indicators(np.array(slopes or [1.0] * num_workers), np.full(num_workers, 0.5))


def test_the_scheduler_draws_as_in_the_figure_of_the_paper() -> None:
    """[CHRONICA] Fig. 5: after the pivot 156 come 129 (171 does not fit), then the smallest, 105 and 88."""
    sizes = np.array([171.0, 129.0, 117.0, 105.0, 156.0, 150.0, 99.0, 88.0])
    owner = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    seed = next(
        seed
        for seed in range(100)
        if 4 in EpochQueues(sizes, owner, 2, [seed]).draw(even_indicators(2), 1)[1]
    )
    drawn = EpochQueues(sizes, owner, 2, [seed]).draw(even_indicators(2), 4)
    assert [sizes[own].tolist() for own in drawn] == [[129.0, 105.0], [156.0, 88.0]]


def epoch(
    sizes: np.ndarray, owner: np.ndarray, indicators: Indicators, seed: Sequence[int]
) -> list[list[np.ndarray]]:
    queues = EpochQueues(sizes, owner, indicators.num_workers, seed)
    steps = []
    while queues.num_left:
        steps.append(queues.draw(indicators, 32))
    return steps


@pytest.mark.parametrize("slopes", [[1.0] * 4, [1.0, 1.0, 2.0, 2.0]])
def test_every_sample_is_drawn_once_by_its_owner_in_full_steps(slopes: list[float]) -> None:
    sizes, owner = generated_sizes(1000, 64.0, 1), np.arange(1000) % 4
    steps = epoch(sizes, owner, even_indicators(4, slopes), [0, 0])
    drawn = np.concatenate([own for step in steps for own in step])
    assert np.array_equal(np.sort(drawn), np.arange(1000))
    assert all((owner[own] == worker).all() for step in steps for worker, own in enumerate(step))
    assert [sum(map(len, step)) for step in steps] == [32] * 31 + [8]


def test_epochs_are_drawn_from_the_seed() -> None:
    sizes, owner = generated_sizes(400, 16.0, 1), np.arange(400) % 4
    flat = [
        np.concatenate([own for step in epoch(sizes, owner, even_indicators(4), seed) for own in step])
        for seed in ([3, 0], [3, 0], [3, 1])
    ]
    assert np.array_equal(flat[0], flat[1])
    assert not np.array_equal(flat[0], flat[2])


def test_unusable_samples_are_never_drawn() -> None:
    owner = np.array([0, -1, 1, 0, 1, -1])
    drawn = EpochQueues(np.full(6, 2.0), owner, 2, [0]).draw(even_indicators(2), 100)
    assert sorted(np.concatenate(drawn).tolist()) == [0, 2, 3, 4]
    assert EpochQueues(np.full(1, 2.0), np.array([-1]), 2, [0]).draw(even_indicators(2), 3)[1].tolist() == []


def test_the_shuffler_moves_the_overflow_only_until_parts_take_equally_long() -> None:
    sizes = generated_sizes(2000, 32.0, 4)
    owner = np.random.default_rng(0).choice(4, 2000, p=[0.4, 0.3, 0.2, 0.1])
    indicators = even_indicators(4)
    after = shuffle(sizes, owner, indicators)
    times_s = np.bincount(after, sizes)
    assert times_s.max() / times_s.mean() < 1.002
    too_much = np.bincount(owner, sizes) - sizes.sum() / 4
    moved = sizes[after != owner].sum()
    assert moved == pytest.approx(too_much[too_much > 0].sum(), rel=0.01)
    assert (
        np.array_equal(shuffle(sizes, after, indicators), after)
        or np.count_nonzero(shuffle(sizes, after, indicators) != after) < 10
    )


def test_unlike_workers_get_parts_by_their_speed_within_some_epochs() -> None:
    sizes, owner = generated_sizes(4000, 32.0, 4), np.arange(4000) % 4
    indicators = even_indicators(4, [1.0, 1.0, 2.0, 2.0])
    for _ in range(6):
        owner = shuffle(sizes, owner, indicators)
    times_s = np.bincount(owner, sizes) * indicators.seconds_per_size
    assert times_s.max() / times_s.min() < 1.05


def test_launches_count_for_every_step_when_parts_are_levelled() -> None:
    """Equal shares leave a and b open; these two workers take equally long for theirs."""
    sizes, owner = np.full(800, 4.0), np.arange(800) % 2
    indicators = Indicators(np.array([0.02, 0.01]), np.array([0.0, 0.32]))
    assert np.array_equal(shuffle(sizes, owner, indicators, num_steps=50), owner)
    assert not np.array_equal(shuffle(sizes, owner, indicators), owner)


def test_wrong_indicators_are_refused() -> None:
    with pytest.raises(PolicyError, match="above 0 seconds per size"):
        Indicators(np.array([0.0]), np.array([0.0]))
    with pytest.raises(PolicyError, match="shapes"):
        Indicators(np.array([1.0]), np.array([0.0, 1.0]))

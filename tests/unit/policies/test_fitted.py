"""The fitted policy finds the exact optimum of unlike workers, soon, and finds it again when they change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from hpcbal.policies.batching import BatchTask, Observation, WorkerLimits
from hpcbal.policies.batching.fitted import Fitted, FittedState
from hpcbal.policies.batching.min_max import split_min_max
from hpcbal.policies.batching.time_curves import CurveMemory, FloatArray, TimeCurves, learn

SLOTS = TimeCurves.of([(0.30, 0.23, 0.0088), (0.45, 0.37, 0.030), (0.50, 0.46, 0.045), (0.55, 0.54, 0.077)])
TASK = BatchTask.uniform(128, 4)
POLICY = Fitted()


def run(
    state: FittedState,
    curves: TimeCurves,
    number: int,
    noise: Callable[[int], FloatArray | float] = lambda _: 1.0,
    memory: Sequence[float] | None = None,
) -> tuple[FittedState, list[float]]:
    """The state after `number` iterations, and what each took over the least that it could."""
    best = curves.makespan(split_min_max(curves, state.task))
    ratios = []
    for k in range(number):
        ratios.append(curves.makespan(state.batch_sizes) / best)
        times_s = curves.seconds(state.batch_sizes) * noise(k)
        used = memory or [None] * len(state.batch_sizes)
        state = POLICY.decide(
            state,
            [
                Observation(size, float(time_s), device_memory_share=share)
                for size, time_s, share in zip(state.batch_sizes, times_s, used, strict=True)
            ],
        ).state
    return state, ratios


def gaussian(seed: int, num_workers: int = 4, spread: float = 0.03) -> Callable[[int], FloatArray]:
    rng = np.random.default_rng(seed)
    return lambda _: np.maximum(0.5, 1.0 + spread * rng.standard_normal(num_workers))


def test_without_noise_it_is_at_the_optimum_within_six_iterations() -> None:
    state, ratios = run(POLICY.start(TASK), SLOTS, 20)
    assert ratios[0] > 2.5
    assert max(ratios[6:]) <= 1.0 + POLICY.least_gain
    assert state.batch_sizes == (89, 21, 12, 6)


@pytest.mark.parametrize("seed", range(3))
def test_with_noise_it_settles_within_six_iterations_and_again_after_a_change(seed: int) -> None:
    noise = gaussian(seed)
    state, ratios = run(POLICY.start(TASK), SLOTS, 60, noise)
    assert min(ratios[:7]) <= 1.05
    assert np.mean(ratios[10:]) <= 1.02
    lost = np.array([0.0, 0.45, 0.0, 0.0])
    changed = TimeCurves(SLOTS.floor_s + lost, SLOTS.launch_s + lost, SLOTS.slope_s)
    _, ratios = run(state, changed, 40, noise)
    assert min(ratios[:11]) <= 1.05
    assert np.mean(ratios[10:]) <= 1.02


def test_answers_that_come_three_iterations_late_delay_it_but_do_not_confuse_it() -> None:
    noise, state, late = gaussian(4), POLICY.start(TASK), []
    ratios = []
    for k in range(60):
        ratios.append(SLOTS.makespan(state.batch_sizes) / SLOTS.makespan((89, 21, 12, 6)))
        times_s = SLOTS.seconds(state.batch_sizes) * noise(k)
        late.append([Observation(n, float(t)) for n, t in zip(state.batch_sizes, times_s, strict=True)])
        if len(late) > 3:
            state = POLICY.decide(state, late.pop(0)).state
    assert min(ratios[:10]) <= 1.05
    assert np.mean(ratios[12:]) <= 1.02


def test_a_single_spike_changes_nothing() -> None:
    noise = gaussian(1, spread=0.01)
    state, _ = run(POLICY.start(TASK), SLOTS, 40, noise)
    spike = np.array([1.0, 3.0, 1.0, 1.0])
    after, _ = run(state, SLOTS, 1, lambda _: spike)
    assert after.batch_sizes == state.batch_sizes
    _, ratios = run(after, SLOTS, 20, noise)
    assert max(ratios) <= 1.03


def test_a_worker_that_slows_down_to_half_its_speed_is_learnt_anew() -> None:
    noise = gaussian(2)
    state, _ = run(POLICY.start(TASK), SLOTS, 40, noise)
    factor = np.array([2.0, 1.0, 1.0, 1.0])
    slower = TimeCurves(SLOTS.floor_s * factor, SLOTS.launch_s * factor, SLOTS.slope_s * factor)
    _, ratios = run(state, slower, 40, noise)
    assert min(ratios[:11]) <= 1.05
    assert np.mean(ratios[10:]) <= 1.02


def test_a_floor_is_told_from_a_launch() -> None:
    sizes = np.array([2, 4, 8, 16, 32, 48, 64], np.float64)
    truth = TimeCurves.of([(0.5, 0.1, 0.02), (0.0, 0.2, 0.01)])
    memory = CurveMemory.empty(2)
    for _ in range(2):
        for size in sizes:
            both = np.full(2, size)
            memory = learn(memory, both, truth.seconds(both))
    for size in sizes:
        both = np.full(2, size)
        np.testing.assert_allclose(memory.fitted.curves.seconds(both), truth.seconds(both), rtol=0.02)


def test_equal_workers_keep_their_even_shares() -> None:
    equal = TimeCurves.of([(0.0, 0.2, 0.01)] * 4)
    _, ratios = run(POLICY.start(TASK), equal, 100, gaussian(3))
    assert np.mean(ratios[10:]) <= 1.02


def test_what_memory_does_not_hold_is_not_given() -> None:
    state, _ = run(POLICY.start(TASK), SLOTS, 5, memory=(0.96, 0.2, 0.2, 0.2))
    assert state.batch_sizes[0] <= 32
    state, _ = run(POLICY.start(TASK), SLOTS, 1, memory=(0.5, 0.2, 0.2, 0.2))
    assert 32 < state.batch_sizes[0] <= 60


@pytest.mark.parametrize(("fixed", "per_sample"), [(0.6, 0.003), (0.3, 0.0065)])
def test_a_worker_gets_its_samples_back_after_a_slow_spell(fixed: float, per_sample: float) -> None:
    """Its memory stays as full as its largest batch has left it: TensorFlow gives none back."""
    state, peak = POLICY.start(BatchTask.uniform(256, 4)), np.zeros(4)
    noise = gaussian(0, spread=0.02)
    for k in range(160):
        sizes = np.array(state.batch_sizes, np.float64)
        peak = np.maximum(peak, fixed + per_sample * sizes)
        slow = np.array([20.0 if 40 <= k < 80 else 1.0, 1.0, 1.0, 1.0])
        times_s = (0.005 + 0.001 * sizes) * slow * noise(k)
        state = POLICY.decide(
            state,
            [
                Observation(size, float(time_s), device_memory_share=float(used))
                for size, time_s, used in zip(state.batch_sizes, times_s, peak, strict=True)
            ],
        ).state
        if k == 79:
            assert state.batch_sizes[0] < 20
    assert min(state.batch_sizes) >= 61
    assert peak.max() <= 0.95 + per_sample


@pytest.mark.parametrize("num_samples", [16, 32, 64])
def test_small_batches_grow_where_memory_is_full_of_weights(num_samples: int) -> None:
    """85 % for any batch: the share that one sample more would take if all grew with it is beyond 95 %."""
    unlike = TimeCurves.of([(0.0, 0.002, 0.004 / speed) for speed in (1, 1, 2, 4)])
    state, _ = run(POLICY.start(BatchTask.uniform(num_samples, 4)), unlike, 60, memory=(0.85,) * 4)
    eighth = num_samples // 8
    assert state.batch_sizes == (eighth, eighth, 2 * eighth, 4 * eighth)


def test_a_worker_is_offered_for_removal_only_where_its_least_is_too_much() -> None:
    task = BatchTask.uniform(40, 3)
    slow = TimeCurves.of([(0.0, 0.1, 0.01), (0.0, 0.1, 0.01), (0.0, 9.0, 0.5)])
    state = POLICY.start(task)
    removed = []
    for _ in range(30):
        times_s = slow.seconds(state.batch_sizes)
        seen = [Observation(n, float(t)) for n, t in zip(state.batch_sizes, times_s, strict=True)]
        decision = POLICY.decide(state, seen)
        removed.append(decision.remove)
        state = decision.state
    assert state.batch_sizes == (20, 19, 1)
    assert removed[: POLICY.offer_after - 1] == [None] * (POLICY.offer_after - 1)
    assert removed[-1] == 2
    state, _ = run(POLICY.start(TASK), SLOTS, 20)
    assert POLICY.decide(state, [Observation(n, 1.0) for n in state.batch_sizes]).remove is None


@pytest.mark.parametrize("seed", range(5))
def test_workers_that_are_equally_hopeless_do_not_shield_each_other(seed: int) -> None:
    """Without one of the two nothing is gained; which is the slower one changes with the noise."""
    slow = TimeCurves.of([(0.0, 0.1, 0.01), (0.0, 0.1, 0.01), (0.0, 9.0, 0.5), (0.0, 9.0, 0.5)])
    state, _ = run(POLICY.start(BatchTask.uniform(40, 4)), slow, 40, gaussian(seed, spread=0.01))
    assert state.hopeless in (2, 3)
    assert state.hopeless_iterations >= POLICY.offer_after


# Alike but for the last one, which holds them up with a single sample.
HOPELESS = TimeCurves.of([(0.0, 0.1, 0.01), (0.0, 0.1, 0.01), (0.0, 0.1, 0.02), (0.0, 90.0, 0.5)])


@pytest.mark.parametrize(
    ("used", "hopeless"),
    [
        (None, 3),  # not measured
        (0.0, 3),
        (0.70, 3),  # 43 of 128 samples are an even share of three: 32 * 0.95 / 0.70 = 43.4
        (0.71, None),
        (0.94, None),
        (0.96, None),
    ],
)
def test_a_worker_is_kept_where_another_could_not_hold_an_even_share_without_it(
    used: float | None, hopeless: int | None
) -> None:
    """Worker 2 has never had more than its 32 samples, and would begin with 43."""
    state, _ = run(POLICY.start(TASK), HOPELESS, 60, memory=(0.2, 0.2, used, 0.2))
    assert (state.largest[2], state.batch_sizes[3], state.hopeless) == (32, 1, hopeless)


@pytest.mark.parametrize(("least", "hopeless"), [(20, 2), (19, None)])
def test_workers_that_are_full_go_on_without_another_as_far_as_they_have_been(
    least: int, hopeless: int | None
) -> None:
    alike = TimeCurves.of([(0.0, 0.1, 0.01), (0.0, 0.1, 0.01), (0.0, 90.0, 0.5)])
    state, _ = run(POLICY.start(BatchTask.uniform(40, 3)), alike, 30)
    assert (state.batch_sizes, state.hopeless) == ((20, 19, 1), 2)
    state, _ = run(replace(state, largest=(20, least, 14)), alike, 1, memory=(0.99,) * 3)
    assert state.hopeless == hopeless


@pytest.mark.parametrize(("most", "hopeless"), [(43, 3), (42, None), (None, 3)])
def test_a_worker_is_kept_where_a_limit_is_below_an_even_share_without_it(
    most: int | None, hopeless: int | None
) -> None:
    others = (WorkerLimits(1), WorkerLimits(1), WorkerLimits(1, most), WorkerLimits(1))
    state, _ = run(POLICY.start(BatchTask(128, others)), HOPELESS, 60)
    assert (state.batch_sizes[3], state.hopeless) == (1, hopeless)


@pytest.mark.parametrize(
    ("limits", "hopeless"),
    [
        ((20, 14), {2, 3}),
        ((19, None), {None}),  # the last two could not be left alone, and one less gains nothing
        ((20, 13), {2}),  # who could not hold a third is the first to go
    ],
)
def test_of_two_that_are_hopeless_the_others_must_hold_even_shares_without_both(
    limits: tuple[int, int | None], hopeless: set[int | None]
) -> None:
    slow = TimeCurves.of([(0.0, 0.1, 0.01), (0.0, 0.1, 0.01), (0.0, 90.0, 0.5), (0.0, 90.0, 0.5)])
    each = (WorkerLimits(1), WorkerLimits(1, limits[0]), WorkerLimits(1, limits[1]), WorkerLimits(1))
    state, _ = run(POLICY.start(BatchTask(40, each)), slow, 40)
    assert state.batch_sizes[2:] == (1, 1)
    assert state.hopeless in hopeless


@pytest.mark.parametrize(("rooms", "is_offered"), [((30, 30, 30), False), ((30, 40, 60), True)])
def test_of_three_that_are_hopeless_none_goes_where_two_could_not_follow(
    rooms: tuple[int, ...], is_offered: bool
) -> None:
    """120 samples: those who stay get 30 each without the first of them, then 40, then 60."""
    slow = TimeCurves.of([(0.0, 0.1, 0.01)] * 2 + [(0.0, 900.0, 0.5)] * 3)
    limits = tuple(WorkerLimits(1, most) for most in (None, None, *rooms))
    state, _ = run(POLICY.start(BatchTask(120, limits)), slow, 40)
    assert state.batch_sizes[2:] == (1, 1, 1)
    assert (state.hopeless is not None) == is_offered


def test_a_gain_that_is_hardly_any_costs_no_worker_its_place() -> None:
    nearly = TimeCurves.of([(0.0, 0.0, 0.1), (0.0, 0.41, 0.0)])
    state, _ = run(POLICY.start(BatchTask.uniform(4, 2)), nearly, 40)
    assert (state.batch_sizes, state.hopeless) == ((3, 1), None)


def test_it_waits_until_every_worker_was_seen() -> None:
    state = POLICY.start(BatchTask.uniform(3, 4))
    seen = [Observation(1, 1.0), Observation(1, 3.0), Observation(1, 1.0), Observation(0, 0.0)]
    assert POLICY.decide(state, seen).batch_sizes == state.batch_sizes

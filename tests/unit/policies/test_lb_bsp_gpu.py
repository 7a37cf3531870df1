"""Alg. 2 line by line: who gives, who gets, when it slows down, and when a worker is offered for removal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from hpcbal.errors import PolicyError
from hpcbal.policies.batching import BatchTask, Observation, WorkerLimits, scale_shares
from hpcbal.policies.batching.lb_bsp_gpu import LbBspGpu, LbBspGpuState, PhaseSettings
from hpcbal.policies.batching.task import Decision

POLICY = LbBspGpu()


def observe(
    sizes: Sequence[int], times_s: Sequence[float], memory: Sequence[float | None] | None = None
) -> list[Observation]:
    used = memory or [None] * len(sizes)
    return [
        Observation(size, time_s, device_memory_share=share)
        for size, time_s, share in zip(sizes, times_s, used, strict=True)
    ]


def repeat(
    state: LbBspGpuState,
    times_s: Sequence[float],
    number: int,
    memory: Sequence[float | None] | None = None,
    policy: LbBspGpu = POLICY,
) -> Decision[LbBspGpuState]:
    """The last of `number` decisions, each worker taking the same time whatever its batch."""
    for _ in range(number):
        decision = policy.decide(state, observe(state.batch_sizes, times_s, memory))
        state = decision.state
    return decision


def test_five_samples_move_when_the_order_has_held_for_five_iterations() -> None:
    state = POLICY.start(BatchTask.uniform(96, 3))
    assert repeat(state, (1.0, 2.0, 3.0), 4).batch_sizes == (32, 32, 32)
    assert repeat(state, (1.0, 2.0, 3.0), 5).batch_sizes == (37, 32, 27)
    assert repeat(state, (1.0, 2.0, 3.0), 7).batch_sizes == (47, 32, 17)


def test_a_leader_that_was_a_straggler_starts_the_fine_tuning() -> None:
    state = repeat(POLICY.start(BatchTask.uniform(64, 2)), (1.0, 2.0), 5).state
    assert (state.batch_sizes, state.fine_tunes) == ((37, 27), False)
    state = repeat(state, (2.0, 1.0), 1).state
    assert (state.batch_sizes, state.fine_tunes) == ((37, 27), True)
    assert repeat(state, (2.0, 1.0), 18).batch_sizes == (37, 27)
    assert repeat(state, (2.0, 1.0), 19).batch_sizes == (36, 28)
    assert repeat(state, (2.0, 1.0), 20).batch_sizes == (35, 29)


def test_a_worker_without_free_memory_does_not_lead() -> None:
    state = POLICY.start(BatchTask.uniform(96, 3))
    assert repeat(state, (1.0, 2.0, 3.0), 5, (0.96, 0.5, 0.5)).batch_sizes == (32, 37, 27)
    assert repeat(state, (1.0, 2.0, 3.0), 5, (0.95, 0.5, 0.5)).batch_sizes == (33, 32, 31)
    assert repeat(state, (1.0, 2.0, 3.0), 5, (0.96, 0.99, 1.0)).batch_sizes == (32, 32, 32)


def test_a_worker_without_free_memory_leads_as_far_as_it_has_been() -> None:
    """TensorFlow gives no memory back: a worker whose memory is full stays so when it has fewer samples."""
    full = (0.96, 0.5, 0.5)
    state = repeat(POLICY.start(BatchTask.uniform(96, 3)), (3.0, 2.0, 1.0), 5, full).state
    assert state.batch_sizes == (27, 32, 37)
    policy = LbBspGpu(PhaseSettings(5, 5), PhaseSettings(4, 5))
    state = repeat(state, (1.0, 2.0, 3.0), 5, full, policy).state
    assert (state.batch_sizes, state.fine_tunes) == ((31, 32, 33), True)
    assert repeat(state, (1.0, 2.0, 3.0), 1, full, policy).batch_sizes == (32, 32, 32)
    assert repeat(state, (1.0, 2.0, 3.0), 2, full, policy).batch_sizes == (32, 36, 28)


@pytest.mark.parametrize(
    ("used", "moved"),
    [
        (0.82, 5),  # 32 * 0.95 / 0.82 = 37.07
        (0.83, 4),
        (0.94, 1),  # 33 samples fill at most 0.94 * 33 / 32 = 0.97
        (None, 5),
    ],
)
def test_a_step_is_cut_to_what_memory_surely_holds(used: float | None, moved: int) -> None:
    state = POLICY.start(BatchTask.uniform(96, 3))
    sizes = repeat(state, (1.0, 2.0, 3.0), 5, (used, 0.5, 0.5)).batch_sizes
    assert sizes == (32 + moved, 32, 32 - moved)


@pytest.mark.parametrize(("used", "moved"), [(0.80, 1), (0.81, 0)])
def test_a_sample_that_might_fill_the_memory_is_not_tried(used: float, moved: int) -> None:
    """One of four samples may take a quarter of what is in use: 0.81 * 5 / 4 is too much."""
    policy = LbBspGpu(PhaseSettings(5, 5), PhaseSettings(1, 5))
    state = repeat(policy.start(BatchTask.uniform(8, 2)), (1.0, 2.0), 5, (used, 0.5), policy).state
    assert state.batch_sizes == (4 + moved, 4 - moved)


def test_limits_cut_the_step_and_take_the_lead() -> None:
    task = BatchTask(96, (WorkerLimits(1, 34), WorkerLimits(1, None), WorkerLimits(25, None)))
    state = POLICY.start(task)
    assert repeat(state, (1.0, 2.0, 3.0), 5).batch_sizes == (34, 32, 30)
    assert repeat(state, (1.0, 2.0, 3.0), 6).batch_sizes == (34, 37, 25)
    assert repeat(state, (1.0, 2.0, 3.0), 9).batch_sizes == (34, 37, 25)


def test_a_straggler_that_is_slow_with_its_last_sample_is_offered_for_removal() -> None:
    policy = LbBspGpu(PhaseSettings(5, 2), PhaseSettings(1, 3))
    state = policy.start(BatchTask.uniform(12, 2))
    decision = repeat(state, (1.0, 9.0), 2, policy=policy)
    assert (decision.batch_sizes, decision.remove) == ((11, 1), None)
    decision = repeat(decision.state, (1.0, 9.0), 1, policy=policy)
    assert (decision.state.fine_tunes, decision.remove) == (True, None)
    decision = repeat(decision.state, (1.0, 9.0), 1, policy=policy)
    assert (decision.batch_sizes, decision.remove) == ((11, 1), 1)
    assert repeat(decision.state, (9.0, 1.0), 1, policy=policy).remove is None


def test_one_slow_iteration_costs_no_worker_its_place() -> None:
    policy = LbBspGpu(PhaseSettings(5, 2), PhaseSettings(1, 3))
    state = repeat(policy.start(BatchTask.uniform(12, 2)), (1.0, 9.0), 3, policy=policy).state
    state = repeat(state, (1.0, 0.9), 1, policy=policy).state
    assert repeat(state, (1.0, 9.0), 2, policy=policy).remove is None
    assert repeat(state, (1.0, 9.0), 3, policy=policy).remove == 1


def test_a_worker_that_is_a_little_slow_with_its_last_sample_is_kept() -> None:
    """With two samples the other one would take longer than both do now."""
    policy = LbBspGpu(PhaseSettings(5, 2), PhaseSettings(1, 3))
    state = policy.start(BatchTask.uniform(2, 2))
    assert repeat(state, (1.0, 1.9), 9, policy=policy).remove is None
    assert repeat(state, (1.0, 2.1), 9, policy=policy).remove == 1


def test_a_straggler_whose_sample_nobody_can_take_is_kept() -> None:
    policy = LbBspGpu(PhaseSettings(5, 2), PhaseSettings(1, 3))
    state = policy.start(BatchTask(8, (WorkerLimits(1, 7), WorkerLimits(1, None))))
    assert repeat(state, (1.0, 90.0), 20, policy=policy).batch_sizes == (7, 1)
    assert repeat(state, (1.0, 90.0), 20, policy=policy).remove is None


HOPELESS = LbBspGpu(PhaseSettings(5, 1), PhaseSettings(1, 3))


@pytest.mark.parametrize(
    ("used", "removed"),
    [
        (None, 3),  # not measured
        (0.0, 3),
        (0.70, 3),  # 43 of 128 samples are an even share of three: 32 * 0.95 / 0.70 = 43.4
        (0.71, None),
        (0.94, None),
        (0.96, None),
    ],
)
def test_a_straggler_is_kept_where_another_could_not_hold_an_even_share(
    used: float | None, removed: int | None
) -> None:
    """Worker 2 has never had more than its 32 samples; without worker 3 it would begin with 43."""
    state = HOPELESS.start(BatchTask.uniform(128, 4))
    decision = repeat(state, (1.0, 1.1, 1.2, 90.0), 60, (0.5, 0.5, used, 0.5), HOPELESS)
    assert decision.batch_sizes[2:] == (32, 1)
    assert decision.remove == removed


def test_a_worker_that_is_full_but_has_held_an_even_share_of_the_rest_does_not_keep_a_straggler() -> None:
    """Worker 0 has held 7 samples, worker 1 no more than 4; without worker 2 either begins with 6."""
    state = HOPELESS.start(BatchTask.uniform(12, 3))
    state = repeat(state, (1.0, 2.0, 90.0), 60, policy=HOPELESS).state
    assert (state.batch_sizes, state.largest) == ((7, 4, 1), (7, 4, 4))
    assert repeat(state, (1.0, 2.0, 90.0), 1, (0.99, 0.5, 0.5), HOPELESS).remove == 2
    assert repeat(state, (1.0, 2.0, 90.0), 1, (0.99, 0.99, 0.5), HOPELESS).remove is None


@pytest.mark.parametrize(("most", "removed"), [(43, 3), (42, None), (None, 3)])
def test_a_straggler_is_kept_where_a_limit_is_below_the_even_share_of_the_others(
    most: int | None, removed: int | None
) -> None:
    others = (WorkerLimits(1, None), WorkerLimits(1, None), WorkerLimits(1, most))
    state = HOPELESS.start(BatchTask(128, (*others, WorkerLimits(1, 32))))
    decision = repeat(state, (1.0, 1.1, 1.2, 90.0), 60, policy=HOPELESS)
    assert (decision.batch_sizes[3], decision.remove) == (1, removed)


@pytest.mark.parametrize(("used", "removed"), [(0.7, 2), (0.96, None)])
def test_a_worker_that_is_full_is_not_reckoned_to_take_the_sample(used: float, removed: int | None) -> None:
    """Worker 1 would have it done in 0.6 s, worker 0 only in 4.5 s; worker 2 takes 3.6 s."""
    policy = LbBspGpu(PhaseSettings(5, 2), PhaseSettings(1, 3))
    state = policy.start(BatchTask(8, (WorkerLimits(1), WorkerLimits(1), WorkerLimits(1, 1))))
    for _ in range(4):
        decision = policy.decide(state, observe((2, 5, 1), (3.0, 0.5, 3.6), (0.5, used, 0.5)))
        state = decision.state
    assert decision.remove == removed


def test_a_small_even_share_is_still_balanced() -> None:
    state = POLICY.start(BatchTask.uniform(8, 2))
    assert repeat(state, (1.0, 2.0), 20).batch_sizes == (5, 3)


def test_steps_that_hold_fewer_samples_are_passed_over() -> None:
    state = POLICY.start(BatchTask.uniform(64, 2))
    for _ in range(9):
        state = POLICY.decide(state, observe((10, 10), (1.0, 2.0))).state
    assert state == POLICY.start(BatchTask.uniform(64, 2))


@pytest.mark.parametrize("broken", [0.002, 0.01, 0.1])
def test_broken_samples_do_not_stop_it(broken: float) -> None:
    """With 1 % of them hardly a step of 512 samples is whole; what is seen counts the valid ones only."""
    rng = np.random.default_rng(0)
    speeds = np.array([100.0, 100.0, 200.0, 400.0])
    state = POLICY.start(BatchTask.uniform(512, 4))
    for _ in range(400):
        valid = np.array(state.batch_sizes) - rng.binomial(state.batch_sizes, broken)
        times_s = valid / speeds * (1 + 0.02 * rng.standard_normal(4))
        state = POLICY.decide(state, observe(valid.tolist(), times_s.tolist())).state
    sizes = np.array(state.batch_sizes)
    assert sizes.sum() == 512
    assert (sizes / speeds).max() <= 1.05 * 512 / speeds.sum()


def test_times_of_steps_with_broken_samples_are_scaled_to_the_shares() -> None:
    state = POLICY.decide(POLICY.start(BatchTask.uniform(64, 2)), observe((30, 32), (3.0, 2.0))).state
    assert state.recent_s == ((pytest.approx(3.2), 2.0),)


def test_of_a_worker_that_lacks_most_of_its_samples_the_last_time_stands() -> None:
    start = POLICY.start(BatchTask.uniform(8, 4))
    lacking = observe((1, 2, 2, 2), (1.5, 2.0, 2.0, 2.0))
    assert POLICY.decide(start, lacking).state.recent_s == ()
    state = repeat(start, (1.0, 2.0, 2.0, 2.0), 1).state
    assert POLICY.decide(state, lacking).state.recent_s[-1] == (1.0, 2.0, 2.0, 2.0)
    nothing = observe((0, 2, 2, 2), (0.0, 2.0, 2.0, 2.0))
    assert POLICY.decide(state, nothing).state.recent_s[-1] == (1.0, 2.0, 2.0, 2.0)


@pytest.mark.parametrize("num_samples", range(1, 64))
def test_a_last_step_of_any_size_is_passed_over(num_samples: int) -> None:
    state = repeat(POLICY.start(BatchTask.uniform(64, 3)), (1.0, 2.0, 3.0), 6).state
    sizes = scale_shares(num_samples, state.batch_sizes)
    times_s = [size and 9.0 for size in sizes]
    after = POLICY.decide(state, observe(sizes, times_s)).state
    assert (after.recent_s, after.was_slower) == (state.recent_s, state.was_slower)


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(PolicyError, match="step of 0 samples"):
        PhaseSettings(0, 5)
    with pytest.raises(PolicyError, match="window of 0 iterations"):
        PhaseSettings(1, 0)
    with pytest.raises(PolicyError, match=r"most_missing: got 1\.0, allowed: 0 <= most_missing < 1"):
        LbBspGpu(most_missing=1.0)


@pytest.mark.parametrize(("num_samples", "num_workers"), [(6, 8), (3, 8), (1, 4)])
def test_workers_without_samples_are_no_reason_to_drop_one_that_has_some(
    num_samples: int, num_workers: int
) -> None:
    """The idle ones are slow, which nobody can know: without a fast one, a slow one would get its sample."""
    state = HOPELESS.start(BatchTask.uniform(num_samples, num_workers))
    times_s = [0.1 + 0.01 * (i % 3) if size else 0.0 for i, size in enumerate(state.batch_sizes)]
    for _ in range(60):
        decision = HOPELESS.decide(state, observe(state.batch_sizes, times_s))
        state = decision.state
        assert (sum(size > 0 for size in state.batch_sizes), decision.remove) == (num_samples, None)


def test_with_idle_workers_a_straggler_goes_if_a_worker_that_is_known_does_its_work_sooner() -> None:
    state = HOPELESS.start(BatchTask.uniform(3, 4))
    assert repeat(state, (0.1, 0.1, 0.19, 0.0), 60, policy=HOPELESS).remove is None
    assert repeat(state, (0.1, 0.1, 0.21, 0.0), 60, policy=HOPELESS).remove == 2

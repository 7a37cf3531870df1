"""Arguments of batching policies are checked, and errors name the problem."""

from __future__ import annotations

import math
import pickle

import pytest

from hpcbal.errors import PolicyError
from hpcbal.policies.batching import BATCHING, BatchTask, Observation, WorkerLimits, scale_shares
from hpcbal.policies.batching.min_max import apportion, split_min_max
from hpcbal.policies.batching.time_curves import TimeCurves


def test_without_limits_each_worker_gets_at_least_one_sample_if_there_are_enough() -> None:
    assert BatchTask.uniform(8, 4).minima == (1, 1, 1, 1)
    assert BatchTask.uniform(3, 4).minima == (0, 0, 0, 0)
    assert BatchTask.uniform(8, 2, WorkerLimits(2, 6)).maxima == (6, 6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WorkerLimits(-1), "got -1 to None samples"),
        (lambda: WorkerLimits(4, 3), "got 4 to 3 samples"),
        (lambda: BatchTask(0, (WorkerLimits(0),)), "cannot balance 0 samples over 1 workers"),
        (lambda: BatchTask(4, ()), "4 samples over 0 workers"),
        (lambda: BatchTask(9, (WorkerLimits(1, 4),) * 2), "at least 2 and at most 8 together"),
        (lambda: BatchTask(1, (WorkerLimits(1),) * 2), "at least 2 and at most 2 together"),
        (lambda: Observation(-1, 1.0), "got -1 samples"),
        (lambda: Observation(1, 0.0), r"1 samples in 0\.0 s"),
        (lambda: Observation(1, 1.0, work=-0.5), r"work of a worker: got -0\.5, allowed: .* 0 or more"),
        (lambda: Observation(1, 1.0, work=math.inf), "work of a worker: got inf"),
        (lambda: BatchTask(2, (WorkerLimits(),), work=0.0), r"work of a batch: got 0\.0, .* above 0"),
        (lambda: Observation(1, math.nan), "in nan s"),
        (lambda: Observation(1, 1.0, cpu_share=1.5), r"cpu_share: got 1\.5, allowed: 0 to 1"),
        (lambda: apportion(4, [1.0, -1.0]), "not negative"),
        (lambda: apportion(4, [1.0, 1.0], maxima=[1, 1]), "cannot share 4 samples out to 2 workers"),
        (lambda: apportion(4, []), "to 0 workers"),
        (lambda: scale_shares(9, (4, 4)), "cannot share 9 samples"),
        (lambda: TimeCurves.of([(0.0, 0.0, -1.0)]), "negative floor or slope"),
        (lambda: TimeCurves.of([(math.inf, 0.0, 1.0)]), "not finite"),
        (lambda: split_min_max(TimeCurves.of([(0, 0, 1)]), BatchTask.uniform(4, 2)), "1 workers for 2"),
    ],
)
def test_invalid_values_are_refused(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(PolicyError, match=message):
        make()


@pytest.mark.parametrize("policy", BATCHING.values(), ids=BATCHING.keys())
def test_a_policy_requires_one_observation_per_worker(policy) -> None:  # type: ignore[no-untyped-def]
    state = policy.start(BatchTask.uniform(8, 2))
    with pytest.raises(PolicyError, match="got 1 observations of 2 workers"):
        policy.decide(state, [Observation(4, 1.0)])


@pytest.mark.parametrize("policy", BATCHING.values(), ids=BATCHING.keys())
def test_policies_and_their_states_survive_pickling(policy) -> None:  # type: ignore[no-untyped-def]
    decision = policy.decide(
        policy.start(BatchTask.uniform(8, 2)), [Observation(4, 1.0), Observation(4, 3.0)]
    )
    again = pickle.loads(pickle.dumps((policy, decision)))
    assert again[0] == policy
    assert again[1].batch_sizes == decision.batch_sizes


@pytest.mark.parametrize("policy", BATCHING.values(), ids=BATCHING.keys())
def test_a_worker_alone_keeps_the_whole_batch(policy) -> None:  # type: ignore[no-untyped-def]
    state = policy.start(BatchTask.uniform(3, 1))
    for _ in range(30):
        decision = policy.decide(state, [Observation(3, 1.0)])
        assert (decision.batch_sizes, decision.remove) == ((3,), None)
        state = decision.state


def test_leftovers_go_to_the_largest_remainder_then_weight_then_lowest_index() -> None:
    assert apportion(10, [5.4, 3.1, 1.5]) == (5, 3, 2)
    assert apportion(4, [1.0, 1.0, 1.0]) == (2, 1, 1)
    assert apportion(5, [0.0, 0.0]) == (3, 2)
    assert apportion(10, [1.0, 0.0], minima=[0, 3]) == (7, 3)
    assert apportion(10, [100.0, 1.0, 1.0], maxima=[4, 10, 10]) == (4, 3, 3)
    assert apportion(10, [1.0, 0.0], maxima=[4, 10]) == (4, 6)
    assert apportion(7, [1e308, 1e308, 1e-308]) == (4, 3, 0)


def test_the_exact_split_of_the_paper_s_four_gpus() -> None:
    workers = TimeCurves.of(
        [(0.30, 0.23, 0.0088), (0.45, 0.37, 0.030), (0.50, 0.46, 0.045), (0.55, 0.54, 0.077)]
    )
    assert split_min_max(workers, BatchTask.uniform(128, 4)) == (89, 21, 12, 6)


def test_a_worker_slow_even_at_its_minimum_takes_what_costs_no_more_time() -> None:
    # The first takes 9 s for up to 5 samples: it takes 5, and the others share the rest.
    workers = TimeCurves.of([(9.0, 8.0, 0.2), (0.0, 0.0, 1.0), (0.0, 0.0, 1.0)])
    assert split_min_max(workers, BatchTask.uniform(11, 3)) == (5, 3, 3)


def test_a_smaller_step_keeps_the_proportions() -> None:
    assert scale_shares(50, (60, 30, 10)) == (30, 15, 5)
    assert scale_shares(1, (60, 30, 10)) == (1, 0, 0)
    assert scale_shares(0, (60, 30, 10)) == (0, 0, 0)


def test_samples_count_1_each_unless_their_work_is_given() -> None:
    assert (BatchTask.uniform(8, 2).work, Observation(3, 0.5).work) == (8.0, 3.0)
    assert BatchTask(8, (WorkerLimits(),) * 2, work=21.5).work == 21.5
    assert Observation(3, 0.5, work=7.25).work == 7.25

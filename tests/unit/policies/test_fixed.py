"""The policy `fixed` gives what the user says, to the sample."""

from __future__ import annotations

import math

import pytest

from hpcbal.errors import PolicyError
from hpcbal.policies.batching import BatchTask, Observation, WorkerLimits
from hpcbal.policies.batching.even import Fixed


@pytest.mark.parametrize(
    ("shares", "num_samples", "num_workers", "expected"),
    [
        ((2, 1, 1), 64, 3, (32, 16, 16)),
        ((64, 96, 128, 160, 192), 640, 5, (64, 96, 128, 160, 192)),
        ((2, 1), 12, 4, (4, 2, 4, 2)),  # again from the first
        ((2, 1, 1), 4, 2, (3, 1)),  # weights of workers that are not there count nothing
        ((1000, 1), 8, 2, (7, 1)),  # everybody goes on being part of it
        ((1,), 5, 2, (3, 2)),
    ],
)
def test_the_batch_is_split_in_proportion(
    shares: tuple[float, ...], num_samples: int, num_workers: int, expected: tuple[int, ...]
) -> None:
    assert Fixed(shares).start(BatchTask.uniform(num_samples, num_workers)).batch_sizes == expected


def test_limits_are_kept() -> None:
    task = BatchTask.uniform(12, 3, WorkerLimits(1, 6))
    assert Fixed((10, 1, 1)).start(task).batch_sizes == (6, 3, 3)


def test_nothing_that_is_seen_changes_the_split() -> None:
    policy = Fixed((3, 1))
    state = policy.start(BatchTask.uniform(8, 2))
    decision = policy.decide(state, [Observation(6, 60.0), Observation(2, 0.1)])
    assert decision.batch_sizes == (6, 2)
    assert decision.remove is None


@pytest.mark.parametrize("shares", [(), (0.0, 1.0), (-1.0,), (math.inf,), (math.nan,)])
def test_weights_out_of_range_are_refused(shares: tuple[float, ...]) -> None:
    with pytest.raises(PolicyError, match=r"fixed: shares: got .* allowed: one weight or more"):
        Fixed(shares)

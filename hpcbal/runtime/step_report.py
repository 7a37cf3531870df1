"""What the ranks of a group tell each other with a training step, as rows of numbers that are summed."""

from __future__ import annotations

import numpy as np

from hpcbal.policies.batching import Observation
from hpcbal.runtime.worker_watch import WorkerWatch
from hpcbal.training.arrays import Array

LEAST_PROCESSING_S = 1e-9
SAMPLES, SECONDS, CPU, MEMORY, DEVICE_MEMORY, SHARES = range(6)
"""Each rank fills its own column of these rows, and the master all of the last one: what it has decided."""
NUM_ROWS = SHARES + 1
UNKNOWN = -1.0
"""Stands for a share that was not measured: the sum over ranks must stay a number."""


def rows_of_rank(rank: int, num_ranks: int, num_samples: int, worked_s: float, watch: WorkerWatch) -> Array:
    """What one rank tells, shape (NUM_ROWS, num_ranks); the last row is left to the master.

    Args:
        num_samples: valid samples of the rank in the step.
        worked_s: seconds until it arrived at the collective, without waiting for others.
        watch: what it sees of its own resources.
    """
    rows = np.zeros((NUM_ROWS, num_ranks))
    host = watch.host()
    shares = (host.cpu_share, host.memory_share, watch.device_memory())
    rows[:SHARES, rank] = (
        num_samples,
        max(worked_s, LEAST_PROCESSING_S) if num_samples else 0.0,
        *(UNKNOWN if share is None else share for share in shares),
    )
    return rows


def observations_of(rows: Array) -> tuple[Observation, ...]:
    """What a policy is told of a step, by rank.

    Args:
        rows: summed over the ranks, shape (NUM_ROWS, num_ranks).
    """
    return tuple(
        Observation(round(samples), seconds, *(None if share == UNKNOWN else share for share in shares))
        for samples, seconds, *shares in rows[:SHARES].T.tolist()
    )

"""What the ranks of a group tell their master of a training step."""

from __future__ import annotations

import numpy as np

from hpcbal.policies.batching import Observation
from hpcbal.runtime.balance.worker_watch import WorkerWatch
from hpcbal.training.arrays import Array

LEAST_PROCESSING_S = 1e-9
SAMPLES, SECONDS, CPU, MEMORY, DEVICE_MEMORY, SHARES = range(6)
"""Where they ride in an all-reduce, each rank fills its column of these rows, and the master all of the last
one: what it has decided."""
NUM_ROWS = SHARES + 1
UNKNOWN = -1.0
"""Stands for a share that was not measured: the sum over ranks must stay a number."""


def only_compute(compute_s: float) -> float:
    """The seconds that a step keeps a rank busy whose samples others preprocess."""
    return compute_s


def report_of_rank(num_samples: int, worked_s: float, watch: WorkerWatch) -> Array:
    """What one rank tells, SAMPLES to DEVICE_MEMORY, shape (SHARES,).

    Args:
        num_samples: valid samples of the rank in the step.
        worked_s: seconds that such a step keeps it busy, without waiting for others.
        watch: what it sees of its own resources.
    """
    host = watch.host()
    shares = (host.cpu_share, host.memory_share, watch.device.read(num_samples))
    return np.array(
        [
            num_samples,
            max(worked_s, LEAST_PROCESSING_S) if num_samples else 0.0,
            *(UNKNOWN if share is None else share for share in shares),
        ],
        np.float64,
    )


def observations_of(reports: Array) -> tuple[Observation, ...]:
    """What a policy is told of a step, by rank.

    Args:
        reports: by rank, shape (ranks, SHARES).
    """
    return tuple(
        Observation(round(samples), seconds, *(None if share == UNKNOWN else share for share in shares))
        for samples, seconds, *shares in reports.tolist()
    )

"""What the ranks of a group report to their master about a training step."""

from __future__ import annotations

import numpy as np

from hpcbal.policies.batching import Observation
from hpcbal.runtime.balance.step import Step
from hpcbal.runtime.balance.worker_watch import WorkerWatch
from hpcbal.training.arrays import Array

LEAST_PROCESSING_S = 1e-9
SAMPLES, WORK, SECONDS, CPU, MEMORY, DEVICE_MEMORY = range(6)
"""Indices of a rank's facts in its report."""
NUM_FACTS = DEVICE_MEMORY + 1
UNKNOWN = -1.0
"""Stands for a share that was not measured: the sum over ranks must stay a number."""


def report_of_rank(step: Step, compute_s: float, watch: WorkerWatch) -> Array:
    """The report of one rank, SAMPLES to DEVICE_MEMORY, shape (NUM_FACTS,).

    Args:
        step: the step that the rank has computed.
        compute_s: seconds of computing, without waiting for others.
        watch: measures the rank's own resources.
    """
    host, num_samples = watch.host(), len(step.batch.ids)
    if step.planned is not None and num_samples:  # policies then count samples of mean size
        num_samples = max(1, round(step.work))
    shares = (host.cpu_share, host.memory_share, watch.device.read(num_samples))
    return np.array(
        [
            num_samples,
            step.work,
            max(step.worked_s(compute_s), LEAST_PROCESSING_S) if num_samples else 0.0,
            *(UNKNOWN if share is None else share for share in shares),
        ],
        np.float64,
    )


def observations_of(reports: Array) -> tuple[Observation, ...]:
    """A policy's observations of a step, by rank.

    Args:
        reports: the ranks' reports, shape (ranks, NUM_FACTS).
    """
    return tuple(map(_observation, reports.tolist()))


def _observation(facts: list[float]) -> Observation:
    samples, work, seconds, *shares = facts
    cpu, memory, device = (None if share == UNKNOWN else share for share in shares)
    return Observation(round(samples), seconds, cpu, memory, device, work)

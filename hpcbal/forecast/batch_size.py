"""A trace for another batch size than the recorded one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hpcbal.errors import PolicyError
from hpcbal.forecast.trace import Resource, Trace


def scaled(trace: Trace, samples_per_step: int) -> Trace:
    """The worker's computations take as many times as long as there are more samples; the rest stays.

    It is a rough guess: what a computation takes besides its samples is scaled too. Bytes stay, too; where
    they depend on the samples (sparse updates), record a second trace and use `interpolated`.

    Args:
        samples_per_step: >= 1.
    """
    factor = samples_per_step / trace.samples_per_step
    computes = np.array([operation.resource is Resource.WORKER for operation in trace.operations])
    durations = np.where(computes, trace.durations_s * factor, trace.durations_s)
    return replace(trace, durations_s=durations, samples_per_step=samples_per_step)


def interpolated(traces: Sequence[Trace], samples_per_step: int) -> Trace:
    """A trace between, or beyond, those of two batch sizes.

    The mean duration and the bytes of each operation lie on the line through both traces. Durations vary from
    step to step as in the trace whose batch size is nearer.

    Args:
        traces: two, of the same operations, with different batch sizes.
        samples_per_step: >= 1.

    Raises:
        PolicyError: the traces have other operations, or the same batch size.
    """
    low, high = sorted(traces, key=lambda trace: trace.samples_per_step)
    if low.samples_per_step == high.samples_per_step:
        raise PolicyError(
            f"both traces have {low.samples_per_step} samples per step; record another batch size"
        )
    shapes = [
        [(o.name, o.resource, o.waits_for, o.server, o.variable) for o in trace.operations]
        for trace in (low, high)
    ]
    if shapes[0] != shapes[1]:
        raise PolicyError("the traces have other operations; record both of the same job")
    share = (samples_per_step - low.samples_per_step) / (high.samples_per_step - low.samples_per_step)
    near = low if share < 0.5 else high
    means = [trace.durations_s.mean(axis=0) for trace in (low, high)]
    wanted = np.maximum(means[0] + share * (means[1] - means[0]), 0.0)
    recorded = near.durations_s.mean(axis=0)
    factor = np.divide(wanted, recorded, out=np.zeros_like(wanted), where=recorded > 0.0)
    operations = tuple(
        replace(one, num_bytes=max(0, round(one.num_bytes + share * (other.num_bytes - one.num_bytes))))
        for one, other in zip(low.operations, high.operations, strict=True)
    )
    return replace(
        near,
        operations=operations,
        durations_s=np.where(recorded > 0.0, near.durations_s * factor, wanted),
        samples_per_step=samples_per_step,
    )

"""How long a forecast takes: [ASGD] Sec. 4.5, Fig. 22, on a synthetic trace of the same network."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from workloads.inception import inception_trace

from hpcbal.forecast import Settings, Trace, like_machines, simulate

WORKERS = range(2, 11)
NUM_STEPS = 1000
BYTES_PER_S = 10e9 / 8

BESIDE = {
    "inception_s": ("117 (with 100 measured steps)", "12"),
}
"""Key -> (the paper's figure, the limit)."""


def measure(num_steps: int = NUM_STEPS, workers: Sequence[int] = WORKERS) -> dict[str, float]:
    """Seconds for all numbers of workers, one after the other on one core.

    Returns: `inception_s`; and what it took per operation, in nanoseconds.
    """
    trace = inception_trace()
    seconds, num_done = 0.0, 0
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        for count in workers:
            passed, done = _run(trace, count, num_steps)
            seconds, num_done = seconds + passed, num_done + done
    finally:
        os.sched_setaffinity(0, allowed)
    return {
        "inception_s": seconds,
        "inception_operations_per_step": float(len(trace.operations)),
        "inception_ns_per_operation": 1e9 * seconds / num_done,
    }


def _run(trace: Trace, num_workers: int, num_steps: int) -> tuple[float, int]:
    """Seconds, and the operations that were simulated."""
    began = time.perf_counter()
    replay = simulate(trace, like_machines(num_workers, 1, BYTES_PER_S), Settings(num_steps))
    passed = time.perf_counter() - began
    return passed, sum(ends.size for ends in replay.ends_s) * len(trace.operations)

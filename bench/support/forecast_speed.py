"""How long a forecast takes: [ASGD] Sec. 4.5, Fig. 22, on a synthetic trace of the same network."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from workloads.inception import inception_trace

from hpcbal.forecast import Settings, Trace, like_machines, simulate
from hpcbal.forecast.program import empty_record, program_of
from hpcbal.forecast.replaying import replay_in_python

WORKERS = range(2, 11)
NUM_STEPS = 1000
BYTES_PER_S = 10e9 / 8

BESIDE = {
    "inception_s": ("117 (with 100 measured steps)", "12"),
}
"""Key -> (the paper's figure, the limit)."""


PYTHON_STEPS = 5


def measure(num_steps: int = NUM_STEPS, workers: Sequence[int] = WORKERS) -> dict[str, float]:
    """Seconds for all numbers of workers, one after the other on one core, and side by side on all.

    Returns: `inception_s` and `inception_all_cores_s`; what an operation took, in nanoseconds, also without
    the C module.
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
    began = time.perf_counter()
    with ThreadPoolExecutor(len(allowed)) as pool:
        list(pool.map(lambda count: _run(trace, count, num_steps), sorted(workers, reverse=True)))
    return {
        "inception_s": seconds,
        "inception_all_cores_s": time.perf_counter() - began,
        "inception_operations_per_step": float(len(trace.operations)),
        "inception_ns_per_operation": 1e9 * seconds / num_done,
        "inception_python_ns_per_operation": _python_ns(trace, max(workers)),
    }


def _python_ns(trace: Trace, num_workers: int) -> float:
    """Of an operation, where the C module is missing."""
    program = program_of(trace, like_machines(num_workers, 1, BYTES_PER_S), PYTHON_STEPS, 0, "fifo", 28e6)
    record = empty_record(program)
    began = time.perf_counter()
    replay_in_python(program, record)
    passed = time.perf_counter() - began
    return 1e9 * passed / (int(record.num_done.sum()) * len(trace.operations))


def _run(trace: Trace, num_workers: int, num_steps: int) -> tuple[float, int]:
    """Seconds, and the operations that were simulated."""
    began = time.perf_counter()
    replay = simulate(trace, like_machines(num_workers, 1, BYTES_PER_S), Settings(num_steps))
    passed = time.perf_counter() - began
    return passed, sum(ends.size for ends in replay.ends_s) * len(trace.operations)

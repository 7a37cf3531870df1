"""Wait for an MPI operation without burning a core."""

from __future__ import annotations

import os
import time

from mpi4py import MPI

SPIN_S = 50e-6
YIELD_S = 2e-3
MAX_SLEEP_S = 1e-3


def wait_for(request: MPI.Request) -> None:
    """Complete `request`: test in a spin, then between yields, then between sleeps of up to 1 ms.

    Raises:
        MPI.Exception: the operation failed.
    """
    start = time.perf_counter()
    sleep_s = 20e-6
    while not request.Test():
        waited_s = time.perf_counter() - start
        if waited_s < SPIN_S:
            continue
        if waited_s < YIELD_S:
            os.sched_yield()
            continue
        time.sleep(sleep_s)
        sleep_s = min(2 * sleep_s, MAX_SLEEP_S)

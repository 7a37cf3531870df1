"""Time calls of a model."""

from __future__ import annotations

import time
from collections.abc import Callable

_LEAST_CALLS, _MOST_CALLS = 5, 100
_MOST_S = 1.0
"""After so many seconds, no more calls than the least number are timed."""


def least_seconds(call: Callable[[], object]) -> float:
    """Return the least time of several calls, after one that does not count, in seconds > 0."""
    call()
    least, started = float("inf"), time.perf_counter()
    for number in range(_MOST_CALLS):
        began = time.perf_counter()
        if number >= _LEAST_CALLS and began - started > _MOST_S:
            break
        call()
        least = min(least, time.perf_counter() - began)
    return max(least, 1e-9)

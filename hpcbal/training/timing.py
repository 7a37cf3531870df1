"""Time calls of a model."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

_LEAST_CALLS, _MOST_CALLS = 5, 100
_MOST_S = 1.0
"""After so many seconds, no more calls than the least number are timed."""


def times_as_long(call: Callable[[], object], other: Callable[[], object]) -> float:
    """Return how many times as long a call takes as another one, > 0.

    It is the median over calls in turn, after one of each that does not count: what else the machine does
    meanwhile slows both.
    """
    call()
    other()
    ratios: list[float] = []
    started = time.perf_counter()
    while len(ratios) < _LEAST_CALLS or (
        len(ratios) < _MOST_CALLS and time.perf_counter() - started <= _MOST_S
    ):
        ratios.append(_seconds(call) / _seconds(other))
    return statistics.median(ratios)


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return max(time.perf_counter() - began, 1e-9)

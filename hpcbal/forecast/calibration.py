"""Measure what parsing received data costs on this machine."""

from __future__ import annotations

import pickle
import statistics
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hpcbal.forecast.overhead import ParsingOverhead, fit_overhead

SIZES = tuple(4**power * 1024 for power in range(8))
"""Bytes: 1 KiB to 16 MiB, about what layers have."""

REPEATS = 25


def calibrate(clock: Callable[[], float]) -> ParsingOverhead:
    """Fit alpha and beta to the times in which messages of many sizes become usable.

    A message is a pickled array of float32. When its last byte is there, it is parsed, and its values are
    copied to where the parameters are. Of each size the median counts; errors count in proportion to it, or
    only large messages would decide.

    Args:
        clock: seconds, such as `time.perf_counter`.

    Source: [ASGD] Sec. 3.2.1, Fig. 10. Deviation: gRPC's own parsing is not measured, so this is the cost of
    a parser in Python with NumPy; fit TensorFlow's from its traces.
    """
    medians = []
    for size in SIZES:
        values = np.arange(size // 4, dtype=np.float32)
        message = pickle.dumps(values, protocol=pickle.HIGHEST_PROTOCOL)
        parameters = np.zeros_like(values)
        medians.append(statistics.median(_seconds(message, parameters, clock) for _ in range(REPEATS)))
    return fit_overhead(SIZES, medians, [1.0 / max(median, 1e-9) ** 2 for median in medians])


def _seconds(message: bytes, parameters: NDArray[np.float32], clock: Callable[[], float]) -> float:
    began = clock()
    np.copyto(parameters, pickle.loads(message))
    return clock() - began

"""Measure what parsing received data costs on this machine, for `--parsing`."""

from __future__ import annotations

import json
import pickle
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hpcbal.forecast.overhead import ParsingOverhead, fit_overhead
from hpcbal.telemetry.files.atomic_file import write_atomic

SIZES = tuple(4**power * 1024 for power in range(8))
"""Bytes: 1 KiB to 16 MiB, about what layers have."""

REPEATS = 25


def calibrate(clock: Callable[[], float] = time.perf_counter) -> ParsingOverhead:
    """Fit alpha and beta to the times in which messages of many sizes become usable.

    A message is a pickled array of float32. When its last byte is there, it is parsed, and its values are
    copied to where the parameters are. Of each size the median counts.

    Source: [ASGD] Sec. 3.2.1, Fig. 10. Deviation: gRPC's own parsing is not measured, so this is the cost of
    a parser in Python with NumPy; fit TensorFlow's from its traces.
    """
    medians = []
    for size in SIZES:
        values = np.arange(size // 4, dtype=np.float32)
        message = pickle.dumps(values, protocol=pickle.HIGHEST_PROTOCOL)
        parameters = np.zeros_like(values)
        medians.append(statistics.median(_seconds(message, parameters, clock) for _ in range(REPEATS)))
    return fit_overhead(SIZES, medians)


def _seconds(message: bytes, parameters: np.ndarray, clock: Callable[[], float]) -> float:
    began = clock()
    np.copyto(parameters, pickle.loads(message))
    return clock() - began


def write_calibration(file: Path) -> ParsingOverhead:
    """Measure, and write what `--parsing` reads.

    Raises:
        OutputError: the file cannot be written.
    """
    found = calibrate()
    record = {"s_per_byte": found.s_per_byte, "s_per_transfer": found.s_per_transfer}
    write_atomic(file, json.dumps(record, indent=2) + "\n")
    return found

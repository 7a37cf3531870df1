"""Traces and machines for tests of the forecast."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from hpcbal.forecast import Links, Topology, Trace, TracedOperation
from hpcbal.forecast.trace_file import lines_of_trace


def trace_of_steps(
    operations: Iterable[TracedOperation], durations_s: Iterable[Iterable[float]], samples_per_step: int = 1
) -> Trace:
    """A trace from plain lists of durations, one for each step."""
    rows = np.array([list(row) for row in durations_s], dtype=np.float64)
    return Trace(tuple(operations), rows, samples_per_step)


def like_machines(num_workers: int, num_servers: int, bytes_per_s: float) -> Topology:
    """Workers and servers with the same links in both directions, as fast as the recorded ones."""
    link = Links(bytes_per_s, bytes_per_s)
    return Topology((link,) * num_workers, (link,) * num_servers)


def write_trace(path: Path, trace: Trace) -> None:
    """Write a trace to a file, as a recording worker does line by line."""
    path.write_text("".join(lines_of_trace(trace)), encoding="utf-8")

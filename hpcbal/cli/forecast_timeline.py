"""Write the beginning of a simulated job as a Chrome trace."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

from hpcbal.cli.forecast_inputs import Inputs
from hpcbal.forecast import simulate
from hpcbal.forecast.overhead import separate_parsing
from hpcbal.forecast.replaying import Chunk
from hpcbal.forecast.timeline import events_of
from hpcbal.telemetry.files.atomic_file import write_atomic

NUM_STEPS = 10
"""Steps of the fastest worker; more would make viewers slow."""


def write_timeline(inputs: Inputs, num_workers: int, file: Path) -> None:
    """Write the first steps with so many workers and the largest number of servers.

    Raises:
        OutputError: the file cannot be written.
    """
    job = inputs.job(num_workers, max(inputs.servers))
    trace = separate_parsing(job.trace, job.parsing)
    chunks: list[Chunk] = []
    settings = replace(job.settings, num_steps=min(NUM_STEPS, job.settings.num_steps))
    simulate(trace, job.cluster, settings, chunks.append)
    events = {"traceEvents": list(events_of(chunks, trace)), "displayTimeUnit": "ms"}
    write_atomic(file, gzip.compress(json.dumps(events, separators=(",", ":")).encode(), mtime=0))

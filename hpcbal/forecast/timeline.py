"""A simulated run in the Chrome Trace Event format, which Perfetto and Chrome show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hpcbal.forecast.replaying import Chunk
from hpcbal.forecast.trace import Resource, Trace

FIRST_PID = 100_000
"""Larger than all thread ids, because viewers confuse the two kinds of ids."""


def events_of(chunks: Iterable[Chunk], trace: Trace) -> Iterator[dict[str, Any]]:
    """Events: a process for each worker, and in it a track for each of its resources.

    Args:
        chunks: what `simulate` has passed to its observer.
        trace: what was simulated.
    """
    named: set[tuple[int, int]] = set()
    for chunk in chunks:
        operation = trace.operations[chunk.operation]
        pid = FIRST_PID + chunk.worker
        track = list(Resource).index(operation.resource) + len(Resource) * operation.server
        if (pid, 0) not in named:
            named.add((pid, 0))
            yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"worker {chunk.worker}"}}
        if (pid, track + 1) not in named:
            named.add((pid, track + 1))
            where = (
                "" if operation.resource is Resource.WORKER or trace.num_servers == 1 else operation.server
            )
            name = f"{operation.resource} {where}".rstrip()
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": track + 1, "args": {"name": name}}
        yield {
            "ph": "X",
            "name": operation.name,
            "cat": operation.resource.value,
            "pid": pid,
            "tid": track + 1,
            "ts": round(1e6 * chunk.begin_s, 3),
            "dur": round(1e6 * (chunk.end_s - chunk.begin_s), 3),
            "args": {"step": chunk.step, "bytes": operation.num_bytes},
        }

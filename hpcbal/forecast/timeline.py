"""A simulated run in the Chrome Trace Event format, which Perfetto and Chrome show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hpcbal.forecast.placing import is_of_worker
from hpcbal.forecast.replaying import Chunk
from hpcbal.forecast.trace import Resource, Trace

FIRST_PID = 100_000
"""Larger than all thread ids, because viewers confuse the two kinds of ids."""


def events_of(chunks: Iterable[Chunk], trace: Trace) -> Iterator[dict[str, Any]]:
    """Events: a process for each worker, and in it a track for each of its resources.

    A track shows no slices that overlap. What overlaps, such as delays, or messages that leave before the one
    before has arrived, goes to further tracks of the resource.

    Args:
        chunks: what `simulate` has passed to its observer.
        trace: what was simulated.
    """
    threads: dict[tuple[int, str, int], int] = {}
    free_s: dict[tuple[int, str], list[float]] = {}
    for chunk in sorted(chunks, key=lambda chunk: (chunk.begin_s, chunk.end_s)):
        operation = trace.operations[chunk.operation]
        pid = FIRST_PID + chunk.worker
        has_server = trace.num_servers > 1 and not is_of_worker(operation)
        name = f"{operation.resource} {operation.server}" if has_server else str(operation.resource)
        lanes = free_s.setdefault((chunk.worker, name), [])
        lane = next((i for i, until_s in enumerate(lanes) if until_s <= chunk.begin_s), len(lanes))
        lanes[lane : lane + 1] = [chunk.end_s]
        if all(worker != chunk.worker for worker, _, _ in threads):
            yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"worker {chunk.worker}"}}
        track = (chunk.worker, name, lane)
        if track not in threads:
            threads[track] = 1 + sum(worker == chunk.worker for worker, _, _ in threads)
            title = f"{name} ({lane + 1})" if lane else name
            thread = {"pid": pid, "tid": threads[track]}
            yield {"ph": "M", "name": "thread_name", **thread, "args": {"name": title}}
            position = list(Resource).index(operation.resource) + len(Resource) * operation.server
            yield {"ph": "M", "name": "thread_sort_index", **thread, "args": {"sort_index": position}}
        yield {
            "ph": "X",
            "name": operation.name,
            "cat": operation.resource.value,
            "pid": pid,
            "tid": threads[track],
            "ts": round(1e6 * chunk.begin_s, 3),
            "dur": round(1e6 * (chunk.end_s - chunk.begin_s), 3),
            "args": {"step": chunk.step, "bytes": operation.num_bytes},
        }

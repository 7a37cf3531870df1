"""Replay the steps of one worker on many, in virtual time, and show them as a timeline."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import PolicyError
from hpcbal.forecast._replaying import replay
from hpcbal.forecast.cluster import Order, Topology
from hpcbal.forecast.program import Program, ReplayArrays, empty_record, program_of
from hpcbal.forecast.trace import Resource, Trace, is_of_worker

FLOW_CONTROL_OFF = math.inf
"""As `Settings.window_bytes`."""


class Stop:
    """A flag that replays look at.

    Attributes:
        flag: shape (1,); not 0 once it is set.
    """

    __slots__ = ("flag",)

    def __init__(self) -> None:
        self.flag = np.zeros(1, dtype=np.uint8)

    @property
    def is_set(self) -> bool:
        """Whether replays should end."""
        return bool(self.flag[0])

    def set(self) -> None:
        """Let all replays that have this flag raise KeyboardInterrupt soon."""
        self.flag[0] = 1


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of work as it happened: part of a transfer, or an operation that computes or waits."""

    worker: int
    step: int
    operation: int
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Settings:
    """How a simulation runs.

    Attributes:
        num_steps: the run ends when a worker has done as many, >= 1.
        seed: of the steps that are drawn.
        order: of the transfers that start a step.
        window_bytes: of HTTP/2 flow control, > 0: a longer stream pauses once, after as many bytes, and the
            streams that wait go first. Infinite: flow control is off ([ASGD] Sec. 3.2.2, 3.3).
        in_turn: whether a link carries one message after another, as those of emulated machines do; else
            all transfers share it. Then the window is of no use.
        begins_s: when each worker starts, >= 0; empty: all at 0. Workers that start together may keep in step
            for long ([ASGD] Fig. 15).
    """

    num_steps: int = 1000
    seed: int = 0
    order: Order = "fifo"
    window_bytes: float = 28e6
    in_turn: bool = False
    begins_s: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.num_steps < 1 or not self.window_bytes > 0:
            raise PolicyError(
                f"{self.num_steps} steps, a window of {self.window_bytes} bytes: "
                "at least one step and a window above 0 are needed"
            )
        if not all(0.0 <= each < math.inf for each in self.begins_s):
            raise PolicyError(f"workers start at {self.begins_s} s; each must be finite and at least 0")


@dataclass(frozen=True, slots=True, eq=False)
class ReplayResult:
    """The outcome of a simulation.

    Attributes:
        ends_s: when each step of each worker ended, one array per worker.
        bytes_moved: shape (2, num_servers): down and up, until the end of the run.
        busy_s: time with at least one transfer, same shape.
        begins_s: when each worker started, shape (num_workers,).
        end_s: of the run.
        communicating_s: of each worker, shape (num_workers,): time with at least one of its transfers.
        exposed_s: of this the time in which the worker did not compute.
        computing_s: time in which the worker computed (or parsed).
        serving_s: of each server, shape (num_servers,): its computations, summed over the workers.
    """

    ends_s: tuple[NDArray[np.float64], ...]
    bytes_moved: NDArray[np.float64]
    busy_s: NDArray[np.float64]
    begins_s: NDArray[np.float64]
    end_s: float
    communicating_s: NDArray[np.float64]
    exposed_s: NDArray[np.float64]
    computing_s: NDArray[np.float64]
    serving_s: NDArray[np.float64]

    def steps_per_s(self, warm_up: int) -> float:
        """Steps per second of all workers together, without the first steps of each.

        Raises:
            PolicyError: a worker did fewer than `warm_up` + 1 steps, or its steps take no time.
        """
        total = 0.0
        for worker, ends in enumerate(self.ends_s):
            if ends.size <= warm_up:
                raise PolicyError(
                    f"worker {worker} did {ends.size} steps, {warm_up} of them to warm up; "
                    "simulate more steps"
                )
            seconds = float(ends[-1] - (ends[warm_up - 1] if warm_up else self.begins_s[worker]))
            if not seconds > 0.0:
                raise PolicyError(
                    f"worker {worker}: its steps take no time; the trace needs durations or bytes"
                )
            total += (ends.size - warm_up) / seconds
        return total


def simulate(
    trace: Trace,
    cluster: Topology,
    settings: Settings,
    observe: Callable[[Chunk], None] | None = None,
    stop: Stop | None = None,
) -> ReplayResult:
    """Replay the trace on all workers of the cluster, each with steps drawn with replacement.

    A worker runs one operation at a time on each of its resources: its own computation, its link to each
    server in each direction, and each server's computation for it. They serve operations in the order in
    which they become ready; of its own computations that are ready, the one that the trace lists first goes
    first. Transfers of all workers share the links (max-min fairness), or take them in turn;
    then what a worker sends does not wait until what it has sent before has arrived.
    Computations share nothing.

    Args:
        observe: is called with every chunk at its end.
        stop: ends the replay early, from another thread.

    Raises:
        PolicyError: the trace was not recorded with the cluster's number of servers,
        there are too many steps for the memory, or times are so long that their sum is no finite number.
        KeyboardInterrupt: the replay was stopped.

    Source: [ASGD] Alg. 3.1. Deviations: links of workers have limits too, links may be taken in turn, and the
    run ends for all workers when the first has done its steps, so that no worker is alone at the end.
    """
    program = program_of(
        trace,
        cluster,
        settings.num_steps,
        settings.seed,
        settings.order,
        settings.window_bytes,
        settings.in_turn,
        settings.begins_s,
    )
    record = empty_record(program)
    try:
        replay_program(program, record, observe, stop)
    except ValueError as error:
        raise PolicyError(f"the trace cannot be simulated: {error}") from error
    except MemoryError as error:
        raise PolicyError(
            f"{len(cluster.workers)} workers and {len(trace.operations)} operations need more memory than "
            "there is; simulate fewer workers or steps"
        ) from error
    return ReplayResult(
        tuple(ends[:done] for ends, done in zip(record.ends_s, record.num_done.tolist(), strict=True)),
        record.bytes_moved,
        record.busy_s,
        program.begins_s,
        float(record.end_s[0]),
        record.communicating_s,
        record.exposed_s,
        record.computing_s,
        record.serving_s,
    )


def replay_program(
    program: Program,
    record: ReplayArrays,
    observe: Callable[[Chunk], None] | None = None,
    stop: Stop | None = None,
) -> None:
    """Replay until the first worker has done its steps, without Python's lock: threads run side by side.

    Args:
        record: empty; is filled in.
        observe: is called with every chunk at its end.
        stop: ends the replay early; None: nothing does.

    Raises:
        As `replay`.
    """
    look = None if observe is None else (lambda *chunk: observe(Chunk(*chunk)))
    replay(
        program.kind,
        program.server,
        program.num_bytes,
        program.num_waits,
        program.starts,
        program.dependents,
        program.roots,
        program.durations_s,
        program.drawn,
        program.worker_slowness,
        program.server_slowness,
        program.bytes_per_s,
        program.begins_s,
        (Stop() if stop is None else stop).flag,
        record.ends_s,
        record.num_done,
        record.bytes_moved,
        record.busy_s,
        record.communicating_s,
        record.exposed_s,
        record.computing_s,
        record.serving_s,
        record.end_s,
        program.window_bytes,
        program.in_turn,
        look,
    )


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

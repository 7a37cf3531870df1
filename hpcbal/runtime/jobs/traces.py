"""Record the messages and computations of an executor, for the trace of a forecast."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from hpcbal.comm.message import Message
from hpcbal.forecast.engine_trace import EngineStep, Messages, ServiceKey
from hpcbal.paramserver.engine.executor import Executor
from hpcbal.paramserver.engine.trace import Trace
from hpcbal.paramserver.engine.wire import Kind
from hpcbal.telemetry.streams.slices import COMPUTE, PULL, SERVE, SHOWN_WAIT_S, BusyTrace, SliceRecorder

TABLES, ROWS = "tables", "rows"
"""Routes of a step: dense tables go over prepared ones."""


@dataclass(frozen=True, slots=True)
class OperationsRecorded(Message):
    """An executor -> the master, at the end of a profiling run.

    Attributes:
        steps: of a worker; none of others.
        services: of a server: seconds by request.
    """

    steps: tuple[EngineStep, ...]
    services: dict[ServiceKey, float]


@dataclass(slots=True)
class _Route:
    """What a step has sent and received over one route so far."""

    pull: int = 0
    request_bytes: int = 0
    answer_bytes: int = 0
    push: int | None = None
    push_bytes: int = 0


@dataclass(slots=True)
class OperationTrace(Trace):
    """Records what a worker sends and gets between the ends of two computations, and what a server does.

    Attributes:
        steps, services: see `OperationsRecorded`.
    """

    steps: list[EngineStep] = field(default_factory=list)
    services: dict[ServiceKey, float] = field(default_factory=dict)
    _routes: dict[str, _Route] = field(default_factory=dict)
    _route_of_pull: dict[int, str] = field(default_factory=dict)
    _ended_s: float | None = None

    records_messages = True

    def turn(
        self,
        epoch: int,
        pull_began_s: float,
        compute_began_s: float,
        compute_ended_s: float,
        num_samples: int = 0,
    ) -> None:
        """See `Trace`."""
        if self._ended_s is not None:
            routes = {
                name: Messages(
                    route.pull, route.request_bytes, route.answer_bytes, route.push, route.push_bytes
                )
                for name, route in self._routes.items()
            }
            self.steps.append(
                EngineStep(self._ended_s, pull_began_s, compute_began_s, compute_ended_s, num_samples, routes)
            )
        self._ended_s = compute_ended_s
        self._routes = {}
        self._route_of_pull = {}

    def message(self, kind: int, request: int, num_bytes: int, *, is_sent: bool) -> None:
        """See `Trace`. What a server sends and gets is of no use: workers record it."""
        if is_sent and kind in (Kind.PULL, Kind.PULL_ROUTE):
            name = TABLES if kind == Kind.PULL_ROUTE else ROWS
            self._route_of_pull[request] = name
            route = self._route(name)
            route.pull = request
            route.request_bytes += num_bytes
        elif is_sent and kind in (Kind.PUSH, Kind.PUSH_ROUTE):
            route = self._route(TABLES if kind == Kind.PUSH_ROUTE else ROWS)
            route.push = request
            route.push_bytes += num_bytes
        elif not is_sent and kind in (Kind.PULLED, Kind.PULLED_ROUTE) and request in self._route_of_pull:
            self._route(self._route_of_pull[request]).answer_bytes += num_bytes

    def served(self, request: int, seconds: float, *, is_pull: bool, is_routed: bool) -> None:
        """See `Trace`."""
        key = (TABLES if is_routed else ROWS, request, is_pull)
        self.services[key] = self.services.get(key, 0.0) + seconds

    def _route(self, name: str) -> _Route:
        return self._routes.setdefault(name, _Route())


class SliceTrace(Trace):
    """Records the first turns of each epoch one by one, and all of them in the slice of the epoch.

    Args:
        slices: of this rank.
        job: name of the job.
    """

    def __init__(self, slices: SliceRecorder, job: str) -> None:
        self._slices, self._job = slices, job
        self._serving = BusyTrace(slices, SERVE)
        self._epoch = -1
        self._num_turns = 0
        self._began_s = self._ended_s = self._pull_s = self._compute_s = 0.0

    def turn(
        self,
        epoch: int,
        pull_began_s: float,
        compute_began_s: float,
        compute_ended_s: float,
        num_samples: int = 0,
    ) -> None:
        """See `Trace`."""
        if epoch != self._epoch:
            self._end_epoch()
            self._epoch, self._began_s = epoch, pull_began_s
        self._num_turns += 1
        self._pull_s += compute_began_s - pull_began_s
        self._compute_s += compute_ended_s - compute_began_s
        self._ended_s = compute_ended_s
        if self._num_turns > self._slices.steps_per_pass:
            return
        if compute_began_s - pull_began_s > SHOWN_WAIT_S:
            self._slices.add(PULL, pull_began_s, compute_began_s)
        self._slices.add(COMPUTE, compute_began_s, compute_ended_s)

    def during(self, kind: str) -> AbstractContextManager[None]:
        """See `Trace`."""
        return self._slices.during(kind)

    def end(self) -> None:
        """Record what has not ended."""
        self._end_epoch()
        self._serving.end()

    def poll_of(self, executor: Executor) -> Callable[[float], bool]:
        """A poll that records when an executor without samples answers requests.

        Pauses below 20 ms are not shown. A worker serves while it waits, which the slices of its turns show.
        """
        served, due_s = 0, 0.0

        def poll(now_s: float) -> bool:
            nonlocal served, due_s
            if now_s < due_s:
                return False
            due_s = now_s + BusyTrace.PAUSE_S / 4
            requests = executor.server.load.requests  # since its last report
            if executor.samples.cursors:
                self._serving.end()
            else:
                self._serving.note(requests not in (0, served))
            served = requests
            return False

        return poll

    def _end_epoch(self) -> None:
        if self._num_turns:
            facts = {"turns": self._num_turns, "pull_s": self._pull_s, "compute_s": self._compute_s}
            name = f"{self._job} epoch {self._epoch + 1}"
            self._slices.add("epoch", self._began_s, self._ended_s, name, facts)
        self._epoch, self._num_turns, self._pull_s, self._compute_s = -1, 0, 0.0, 0.0

"""Record the messages and computations of an executor, for the trace of a forecast."""

from __future__ import annotations

from dataclasses import dataclass, field

from hpcbal.comm.channel import Message
from hpcbal.forecast.engine_trace import EngineStep, Messages, ServiceKey
from hpcbal.paramserver.engine.trace import Trace
from hpcbal.paramserver.engine.wire import Kind

ROUTE = "parameters"
"""Name of the one route of a step: tables and rows go together."""


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
    """What a step has sent and received so far."""

    pull: int | None = None
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
    _route: _Route = field(default_factory=_Route)
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
        route, self._route = self._route, _Route()
        if self._ended_s is not None and route.pull is not None:
            sent = Messages(route.pull, route.request_bytes, route.answer_bytes, route.push, route.push_bytes)
            self.steps.append(
                EngineStep(
                    self._ended_s,
                    pull_began_s,
                    compute_began_s,
                    compute_ended_s,
                    num_samples,
                    {ROUTE: sent},
                )
            )
        self._ended_s = compute_ended_s

    def message(self, kind: int, request: int, num_bytes: int, *, is_sent: bool) -> None:
        """See `Trace`. What a server sends and gets is of no use: workers record it."""
        route = self._route
        if is_sent and kind == Kind.PULL:
            route.pull = request
            route.request_bytes += num_bytes
        elif is_sent and kind == Kind.PUSH:
            route.push = request
            route.push_bytes += num_bytes
        elif not is_sent and kind == Kind.PULLED and request == route.pull:
            route.answer_bytes += num_bytes

    def served(self, request: int, seconds: float, *, is_pull: bool) -> None:
        """See `Trace`."""
        key = (ROUTE, request, is_pull)
        self.services[key] = self.services.get(key, 0.0) + seconds

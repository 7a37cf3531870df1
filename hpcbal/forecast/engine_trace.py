"""Make a trace from what a worker and a server of hpcbal's own engine record.

The ranks' clocks need not agree: the worker knows how long it waited, the server how long it worked, and what
is left was spent on the way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpcbal.errors import InputError
from hpcbal.forecast.overhead import fit_overhead
from hpcbal.forecast.trace import Resource, Trace, TracedOperation

SHARED_SIZES = 0.02
"""Steps whose bytes differ by less than this share do not tell bandwidth and latency apart."""


class EngineRecordError(InputError):
    """Too little was recorded, or the records do not fit together."""


@dataclass(frozen=True, slots=True)
class Messages:
    """The messages of a step that go over one route; a step has one or two: dense tables, and rows.

    Attributes:
        pull: number of the request.
        request_bytes, answer_bytes: of the pull, headers included.
        push: number of the push that was sent before; None: there was none.
        push_bytes: of the push; 0 if there was none.
    """

    pull: int
    request_bytes: int
    answer_bytes: int
    push: int | None = None
    push_bytes: int = 0


@dataclass(frozen=True, slots=True)
class EngineStep:
    """From the end of one computation of a worker to the end of the next one, in seconds of its clock.

    The worker sends updates, gathers samples, asks for parameters, waits, and computes.

    Attributes:
        begins_s: the end of the computation before.
        asks_s: when it asks for parameters.
        has_s: when it has them, and computes.
        ends_s: of the computation.
        num_samples: that it computed, >= 1.
        routes: by name.
    """

    begins_s: float
    asks_s: float
    has_s: float
    ends_s: float
    num_samples: int
    routes: Mapping[str, Messages]


ServiceKey = tuple[str, int, bool]
"""Name of the route, number of the request, and whether it was a pull."""

Services = Mapping[ServiceKey, float]
"""Seconds that the server needed for each request."""


def trace_of_engine(
    steps: Sequence[EngineStep], services: Services, bytes_per_s: float | None = None
) -> Trace:
    """The trace of one worker and one server.

    A step has, for each route, the updates (uplink), their application (server), the request (uplink), the
    server's work on it, the parameters (downlink); and gathering and computing at the worker. Steps with
    fewer samples than most, or without a message that others have, are left out. Bytes are means over steps.

    Args:
        steps: of the worker, without those of its warm-up.
        services: what the server recorded.
        bytes_per_s: of the links in each direction; None: estimated. What bytes and work do not explain of a
            wait is latency. Each answer has all of it, since they are on their way side by side.

    Raises:
        EngineRecordError: no steps are left, or the server did not record one.
    """
    kept = _alike(steps)
    if not kept:
        raise EngineRecordError("no whole step was recorded; record more steps")
    names = sorted(kept[0].routes)
    try:
        waits = [_Wait.of(step, names, services) for step in kept]
    except KeyError as error:
        raise EngineRecordError(
            f"the server has no record of request {error.args[0]} that the worker sent"
        ) from error
    rate = _bandwidth(waits) if bytes_per_s is None else bytes_per_s
    operations = _operations(names, kept)
    durations = [_durations(step, wait, names, rate) for step, wait in zip(kept, waits, strict=True)]
    return Trace(tuple(operations), np.array(durations), kept[0].num_samples, splits=True)


def _alike(steps: Sequence[EngineStep]) -> list[EngineStep]:
    """The steps that are like most of them."""
    sorts = Counter(_sort_of(step) for step in steps)
    if not sorts:
        return []
    most = max(sorts, key=lambda sort: (sorts[sort], sort))
    return [step for step in steps if _sort_of(step) == most]


def _sort_of(step: EngineStep) -> tuple[int, tuple[tuple[str, bool], ...]]:
    return step.num_samples, tuple(
        sorted((name, each.push is not None) for name, each in step.routes.items())
    )


@dataclass(frozen=True, slots=True)
class _Wait:
    """How long a worker waited from the end of its computation until it had parameters, and for what.

    Attributes:
        seconds: of the wait.
        prepare_s: until it asked.
        apply_s, answer_s: of the server, by route.
        push_bytes, request_bytes, answer_bytes: by route.
    """

    seconds: float
    prepare_s: float
    apply_s: tuple[float, ...]
    answer_s: tuple[float, ...]
    push_bytes: tuple[int, ...]
    request_bytes: tuple[int, ...]
    answer_bytes: tuple[int, ...]

    @classmethod
    def of(cls, step: EngineStep, names: Sequence[str], services: Services) -> _Wait:
        routes = [step.routes[name] for name in names]
        return cls(
            step.has_s - step.begins_s,
            step.asks_s - step.begins_s,
            tuple(
                0.0 if each.push is None else services[name, each.push, False]
                for name, each in zip(names, routes, strict=True)
            ),
            tuple(services[name, each.pull, True] for name, each in zip(names, routes, strict=True)),
            tuple(each.push_bytes for each in routes),
            tuple(each.request_bytes for each in routes),
            tuple(each.answer_bytes for each in routes),
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of all messages, which go one after the other."""
        return sum(self.push_bytes) + sum(self.request_bytes) + sum(self.answer_bytes)

    @property
    def on_the_way_s(self) -> float:
        """Seconds that neither the server's work nor a late request explains, at least."""
        return self.seconds - sum(self.apply_s) - sum(self.answer_s)

    def explained_s(self, rate: float) -> float:
        """Return the wait without latency, for a worker alone: one message after the other."""
        sent = served = arrived = 0.0
        for num_bytes, seconds in zip(self.push_bytes, self.apply_s, strict=True):
            sent += num_bytes / rate
            served = max(served, sent) + seconds
        sent = max(sent, self.prepare_s)
        for num_bytes, answer_bytes, seconds in zip(
            self.request_bytes, self.answer_bytes, self.answer_s, strict=True
        ):
            sent += num_bytes / rate
            served = max(served, sent) + seconds
            arrived = max(arrived, served) + answer_bytes / rate
        return arrived


def _bandwidth(waits: Sequence[_Wait]) -> float:
    """Bytes/s of links that were not emulated.

    If steps moved unlike numbers of bytes, a line through their waits tells bandwidth and latency apart; else
    all of the time on the way counts as needed for bytes.
    """
    num_bytes = np.array([wait.num_bytes for wait in waits], dtype=np.float64)
    seconds = np.array([wait.on_the_way_s for wait in waits])
    if num_bytes.std() > SHARED_SIZES * num_bytes.mean():
        fitted = fit_overhead(num_bytes.tolist(), seconds.tolist())
        if fitted.s_per_byte > 0.0:
            return 1.0 / fitted.s_per_byte
    total_s = float(np.maximum(seconds, 0.0).sum())
    if total_s <= 0.0:
        raise EngineRecordError(
            "the worker never waited for a transfer, so the speed of links cannot be told; give it"
        )
    return float(num_bytes.sum()) / total_s


def _operations(names: Sequence[str], steps: Sequence[EngineStep]) -> list[TracedOperation]:
    def mean(attribute: str, name: str) -> int:
        return round(float(np.mean([getattr(step.routes[name], attribute) for step in steps])))

    operations: list[TracedOperation] = []
    applied: dict[str, tuple[int, ...]] = {}
    for name in names:
        applied[name] = ()
        if steps[0].routes[name].push is not None:
            sent = len(operations)
            operations.append(
                TracedOperation(
                    f"send updates of {name}", Resource.UPLINK, (), mean("push_bytes", name), 0, name
                )
            )
            operations.append(
                TracedOperation(f"apply updates of {name}", Resource.SERVER, (sent,), variable=name)
            )
            applied[name] = (sent + 1,)
    prepared = len(operations)
    operations.append(TracedOperation("gather samples", Resource.WORKER))
    received = []
    for name in names:
        asked = len(operations)
        operations += [
            TracedOperation(
                f"ask for {name}", Resource.UPLINK, (prepared,), mean("request_bytes", name), 0, name
            ),
            TracedOperation(f"answer for {name}", Resource.SERVER, (*applied[name], asked), variable=name),
            TracedOperation(f"latency of {name}", Resource.DELAY, (asked + 1,), variable=name),
            TracedOperation(
                f"send {name}", Resource.DOWNLINK, (asked + 2,), mean("answer_bytes", name), 0, name
            ),
        ]
        received.append(asked + 3)
    operations.append(TracedOperation("compute", Resource.WORKER, tuple(received)))
    return operations


def _durations(step: EngineStep, wait: _Wait, names: Sequence[str], rate: float) -> list[float]:
    latency_s = max(0.0, wait.seconds - wait.explained_s(rate))
    durations: list[float] = []
    for i, name in enumerate(names):
        if step.routes[name].push is not None:
            durations += [wait.push_bytes[i] / rate, wait.apply_s[i]]
    durations.append(wait.prepare_s)
    for i in range(len(names)):
        durations += [
            wait.request_bytes[i] / rate,
            wait.answer_s[i],
            latency_s,
            wait.answer_bytes[i] / rate,
        ]
    return [*durations, step.ends_s - step.has_s]

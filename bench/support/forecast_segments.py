"""Cut a worker's computation where transfers begin and end, so that few waits can replay it."""

from __future__ import annotations

from dataclasses import dataclass, field

from hpcbal.forecast.trace import Resource, Trace


@dataclass(slots=True)
class Segment:
    """Computations that run one after the other, with no transfer between them; positions in the trace.

    Attributes:
        receives: transfers that the first of them waits for.
        computes: the computations.
        sends: transfers that wait for the last of them.
    """

    receives: list[int] = field(default_factory=list)
    computes: list[int] = field(default_factory=list)
    sends: list[int] = field(default_factory=list)


def segments_of(trace: Trace) -> list[Segment]:
    """In the order in which the operations ran; each starts where a transfer is needed or after a send."""
    sends: dict[int, list[int]] = {}
    for position, operation in enumerate(trace.operations):
        if operation.resource is Resource.UPLINK:
            last = max(operation.waits_for, default=-1)
            sends.setdefault(last, []).append(position)
    segments = [Segment()]
    for position, operation in enumerate(trace.operations):
        if operation.resource is not Resource.WORKER:
            continue
        receives = [p for p in operation.waits_for if trace.operations[p].resource is Resource.DOWNLINK]
        if (receives or segments[-1].sends) and segments[-1].computes:
            segments.append(Segment())
        segments[-1].receives += receives
        segments[-1].computes.append(position)
        segments[-1].sends += sends.get(position, [])
    return segments

"""The cost of parsing received data: fitted to a trace, or measured on this machine."""

from __future__ import annotations

import math
import pickle
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import PolicyError
from hpcbal.forecast.trace import Resource, Trace, TracedOperation


@dataclass(frozen=True, slots=True)
class ParsingOverhead:
    """Seconds that parsing takes, linear in the bytes; a property of the platform, not of the network.

    Attributes:
        s_per_byte: alpha, >= 0.
        s_per_transfer: beta, >= 0.

    Source: [ASGD] Sec. 3.2.1.
    """

    s_per_byte: float = 0.0
    s_per_transfer: float = 0.0

    def __post_init__(self) -> None:
        if not (0.0 <= self.s_per_byte < math.inf and 0.0 <= self.s_per_transfer < math.inf):
            raise PolicyError(
                f"parsing: got {self.s_per_byte} s per byte and {self.s_per_transfer} s per transfer; both "
                "must be finite and at least 0"
            )

    def seconds(self, num_bytes: float) -> float:
        """Seconds for one transfer."""
        return self.s_per_byte * num_bytes + self.s_per_transfer


NO_PARSING = ParsingOverhead()


def fit_overhead(
    num_bytes: Sequence[float], seconds: Sequence[float], weights: Sequence[float] | None = None
) -> ParsingOverhead:
    """The parsing overhead that fits measurements best, by least squares.

    Args:
        num_bytes: of each measured transfer, at least two different sizes.
        seconds: between its last byte and the time at which its data can be used.
        weights: of the squared errors, > 0; None: all the same.

    Returns: alpha and beta. One that would be negative is 0, and the other fits best with that.

    Raises:
        PolicyError: fewer than two sizes, or lists of different lengths.

    Source: [ASGD] Sec. 3.2.1, Fig. 10. Deviation: neither may be negative.
    """
    x, y = np.asarray(num_bytes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    w = np.ones_like(x) if weights is None else np.asarray(weights, dtype=np.float64)
    if not x.shape == y.shape == w.shape or np.unique(x).size < 2:
        raise PolicyError(
            f"{x.size} sizes and {y.size} times: measure transfers of at least two sizes, one time for each"
        )
    mean_x, mean_y = np.average(x, weights=w), float(np.average(y, weights=w))
    slope = float((w * (x - mean_x) * (y - mean_y)).sum() / (w * (x - mean_x) ** 2).sum())
    constant = mean_y - slope * float(mean_x)
    if slope < 0.0:
        return ParsingOverhead(0.0, max(mean_y, 0.0))
    if constant < 0.0:
        return ParsingOverhead(max(float((w * x * y).sum() / (w * x * x).sum()), 0.0), 0.0)
    return ParsingOverhead(slope, constant)


def separate_parsing(trace: Trace, overhead: ParsingOverhead) -> Trace:
    """Make parsing an operation of its own: each transfer is followed by one at its receiver.

    Whatever waits for the transfer waits for the parsing instead. The recorded duration of the transfer is
    shorter by as much. The trace is returned as it is if there is no overhead.

    Source: [ASGD] Sec. 3.2.1, Sec. 3.4.
    """
    if overhead == NO_PARSING:
        return trace
    operations: list[TracedOperation] = []
    columns = []
    usable: list[int] = []  # where each old operation's result can be used
    for position, operation in enumerate(trace.operations):
        waits_for = tuple(usable[before] for before in operation.waits_for)
        operations.append(replace(operation, waits_for=waits_for))
        columns.append(trace.durations_s[:, position])
        if operation.resource.is_link:
            seconds = overhead.seconds(operation.num_bytes)
            columns[-1] = np.maximum(columns[-1] - seconds, 0.0)
            columns.append(np.full(trace.num_steps, seconds))
            operations.append(_parsing(operation, len(operations) - 1))
        usable.append(len(operations) - 1)
    orders = trace.downlink_orders
    if orders is not None:
        orders = np.array(usable, dtype=np.int64)[orders] - 1  # the transfer is just before its parsing
    return replace(
        trace,
        operations=tuple(operations),
        durations_s=np.stack(columns, axis=1),
        downlink_orders=orders,
    )


def with_step_overhead(trace: Trace, seconds: float) -> Trace:
    """Let every step end so much later: what it costs beside its operations and bytes, such as round trips.

    Recorded operations have no times of what lies between them. A measured throughput of one worker without
    recording says how long that is in all. Links and the worker are free meanwhile.

    Args:
        seconds: of a step, >= 0 and finite.

    Raises:
        PolicyError: `seconds` is out of its range.
    """
    if not 0.0 <= seconds < math.inf:
        raise PolicyError(f"overhead of a step: got {seconds} s; it must be finite and at least 0")
    if not seconds:
        return trace
    awaited = {before for operation in trace.operations for before in operation.waits_for}
    last = tuple(position for position in range(len(trace.operations)) if position not in awaited)
    return replace(
        trace,
        operations=(*trace.operations, TracedOperation("step overhead", Resource.DELAY, last)),
        durations_s=np.column_stack([trace.durations_s, np.full(trace.num_steps, seconds)]),
    )


def _parsing(transfer: TracedOperation, position: int) -> TracedOperation:
    name = f"parse {transfer.name}"
    if transfer.resource is Resource.DOWNLINK:
        return TracedOperation(name, Resource.WORKER, (position,))
    return TracedOperation(name, Resource.SERVER, (position,), 0, transfer.server, transfer.variable)


SIZES = tuple(4**power * 1024 for power in range(8))
"""Bytes: 1 KiB to 16 MiB, about what layers have."""

REPEATS = 25


def calibrate(clock: Callable[[], float]) -> ParsingOverhead:
    """Fit alpha and beta to the times in which messages of many sizes become usable.

    A message is a pickled array of float32. When its last byte is there, it is parsed, and its values are
    copied to where the parameters are. Of each size the median counts; errors count in proportion to it, or
    only large messages would decide.

    Args:
        clock: seconds, such as `time.perf_counter`.

    Source: [ASGD] Sec. 3.2.1, Fig. 10. Deviation: gRPC's own parsing is not measured, so this is the cost of
    a parser in Python with NumPy; fit TensorFlow's from its traces.
    """
    medians = []
    for size in SIZES:
        values = np.arange(size // 4, dtype=np.float32)
        message = pickle.dumps(values, protocol=pickle.HIGHEST_PROTOCOL)
        parameters = np.zeros_like(values)
        medians.append(statistics.median(_seconds(message, parameters, clock) for _ in range(REPEATS)))
    return fit_overhead(SIZES, medians, [1.0 / max(median, 1e-9) ** 2 for median in medians])


def _seconds(message: bytes, parameters: NDArray[np.float32], clock: Callable[[], float]) -> float:
    began = clock()
    np.copyto(parameters, pickle.loads(message))
    return clock() - began

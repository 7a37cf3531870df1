"""The machines that a forecast is for, and in which order they send."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hpcbal.errors import PolicyError
from hpcbal.forecast.trace import Resource, TracedOperation


@dataclass(frozen=True, slots=True)
class Links:
    """The rates of a machine's link in each direction, and its slowness in computing.

    Attributes:
        down_bytes_per_s: of parameters, from servers to workers, > 0; may be infinite for a worker.
        up_bytes_per_s: of updates, from workers to servers; the same range.
        slowness: its computations take this many times as long as recorded, > 0 and finite.
    """

    down_bytes_per_s: float
    up_bytes_per_s: float
    slowness: float = 1.0

    def __post_init__(self) -> None:
        if not (self.down_bytes_per_s > 0 and self.up_bytes_per_s > 0 and 0 < self.slowness < math.inf):
            raise PolicyError(
                f"bandwidths {self.down_bytes_per_s} and {self.up_bytes_per_s}, slowness {self.slowness}: "
                "all must be above 0, and the slowness finite"
            )


@dataclass(frozen=True, slots=True)
class Topology:
    """Workers and servers, alike or not.

    Raises:
        PolicyError: no workers or servers, or a server's link without a limit.
    """

    workers: tuple[Links, ...]
    servers: tuple[Links, ...]

    def __post_init__(self) -> None:
        if not self.workers or not self.servers:
            raise PolicyError(
                f"{len(self.workers)} workers and {len(self.servers)} servers: at least one of each is needed"
            )
        if any(math.isinf(s.down_bytes_per_s) or math.isinf(s.up_bytes_per_s) for s in self.servers):
            raise PolicyError("a server's bandwidth must be finite")


Order = Literal["fifo", "tic"]
"""Of the transfers that start a step: as the trace, or each of its steps, has them, or by `tic`."""


def as_they_come(operations: Sequence[TracedOperation]) -> list[int]:
    """The order of the trace."""
    return [i for i, operation in enumerate(operations) if operation.resource is Resource.DOWNLINK]


def tic(operations: Sequence[TracedOperation]) -> list[int]:
    """Parameters first that let the worker compute with the fewest transfers; no timings are needed.

    The load of an operation is the number of downlink transfers that it needs, directly or through others. A
    transfer comes the earlier, the lower the least load is of those operations that need it and at least one
    more. Among equals the one comes first that an operation with fewer transfers needs, alone or not; then
    the trace decides.

    Source: TIC of [TICTAC], as [ASGD] Sec. 3.3 uses it: the priority is the impending communication load,
    with one unit for each transfer. The rule for equals is ours.
    """
    transfers = as_they_come(operations)
    bits = {position: 1 << bit for bit, position in enumerate(transfers)}
    needs: list[int] = []
    never = len(transfers) + 1
    least = dict.fromkeys(transfers, never)
    least_shared = dict.fromkeys(transfers, never)
    seen: set[int] = set()
    for position, operation in enumerate(operations):
        need = bits.get(position, 0)
        for before in operation.waits_for:
            need |= needs[before]
        needs.append(need)
        if operation.resource is not Resource.WORKER or need in seen:
            continue
        seen.add(need)  # many operations need the same transfers
        load = need.bit_count()
        for transfer, bit in bits.items():
            if need & bit:
                least[transfer] = min(least[transfer], load)
                if load > 1:
                    least_shared[transfer] = min(least_shared[transfer], load)
    return sorted(transfers, key=lambda transfer: (least_shared[transfer], least[transfer], transfer))

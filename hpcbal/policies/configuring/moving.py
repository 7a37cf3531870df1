"""Predict what a change of configuration costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcbal.policies.configuring.changes import Move, Plan
from hpcbal.policies.configuring.cost_model import Machine

_STALL_SHARE = 0.05
"""Largest share of a change's time in which training stands still: the runtime keeps to it."""


@dataclass(frozen=True, slots=True)
class MovingCost:
    """The cost of a change.

    Attributes:
        bytes_moved: of all blocks.
        change_s: from the first block that leaves to the last that arrives.
        lost_s: training time that the change costs.
    """

    bytes_moved: float
    change_s: float
    lost_s: float


def cost_of_moving(
    plan: Plan,
    machines: Sequence[Machine],
    data_block_bytes: float,
    parameter_block_bytes: float,
    link_share: float,
) -> MovingCost:
    """Predict the time of a change from the bytes on each link.

    Each machine sends and receives at its bandwidth, both at once. A change takes as long as the busiest
    direction of a link, but no less than the slowest chain of operations that wait for each other. Training
    goes on meanwhile. It loses 5 % of that time, in which it stands still, and `link_share` for links that it
    shares with the blocks: a turn takes longer if its bytes wait behind a block.

    Args:
        data_block_bytes, parameter_block_bytes: mean size of a block.
        link_share: 0..1, the share of an epoch in which a worker waits for its link.
    """
    sizes = {"data": data_block_bytes, "parameters": parameter_block_bytes}
    sent: dict[tuple[int, str], float] = {}
    total = 0.0
    for move in plan.moves:
        size = len(move.blocks) * sizes[move.what]
        total += size
        for key in ((move.source, "sends"), (move.destination, "receives")):
            sent[key] = sent.get(key, 0.0) + size
    busiest_s = max((size / machines[i].bandwidth for (i, _), size in sent.items()), default=0.0)
    ends: list[float] = []
    for operation, needed in zip(plan.operations, plan.after, strict=True):
        seconds = 0.0
        if isinstance(operation, Move):
            slower = min(machines[operation.source].bandwidth, machines[operation.destination].bandwidth)
            seconds = len(operation.blocks) * sizes[operation.what] / slower
        ends.append(seconds + max((ends[i] for i in needed), default=0.0))
    change_s = max(busiest_s, max(ends, default=0.0))
    return MovingCost(total, change_s, change_s * min(1.0, _STALL_SHARE + link_share))

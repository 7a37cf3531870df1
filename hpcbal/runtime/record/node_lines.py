"""What each node computes on, one line per node, for the start of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hpcbal.cluster.roles import SCHEDULER_RANK, Roles
from hpcbal.telemetry.views.table import count_text

CPU = "cpu, "
"""How the devices begin that are a share of a node's cores; the number of threads follows."""

EMULATED = "emulated"


def node_lines(roles: Roles, devices: Sequence[str | None]) -> list[str]:
    """Name the devices of each node: `n1: 4 GPUs (NVIDIA A100), 1 preprocessor, the scheduler`.

    Args:
        roles: the roles of all ranks.
        devices: the device of each rank, from `Recipe.prepare`; None for ranks that do not train.
    """
    lines = []
    for index, node in enumerate(roles.cluster.nodes):
        ranks = [info.rank for info in roles.ranks if info.node == index]
        kinds = Counter(device for rank in ranks if (device := devices[rank]) is not None)
        parts = [_slots_text(device, count) for device, count in kinds.items()]
        parts.append(count_text(roles.num_local_producers(index), "preprocessor"))
        if SCHEDULER_RANK in ranks:
            parts.append("the scheduler")
        lines.append(f"{node.host}: {', '.join(parts)}")
    return lines


def _slots_text(device: str, count: int) -> str:
    if device.startswith(CPU):
        each = " each" if count > 1 else ""
        return f"{count_text(count, 'slot')} of CPU cores ({device.removeprefix(CPU)}{each})"
    if device == EMULATED:
        return count_text(count, "emulated slot")
    return f"{count_text(count, 'GPU')} ({device})"

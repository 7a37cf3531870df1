"""The layout of an allocation: nodes with their slots, and how they are found."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Node:
    """One machine: ranks on it share memory.

    Attributes:
        host: host name, for people.
        num_slots: places to train (slots, or shares of the cores), >= 0.
    """

    host: str
    num_slots: int


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes in order; slots are numbered from 0 through all nodes, node 0 first."""

    nodes: tuple[Node, ...]

    @classmethod
    def uniform(cls, num_nodes: int, num_slots_per_node: int) -> Cluster:
        """Make a cluster of equal nodes, for plans and tests."""
        return cls(tuple(Node(f"node{i}", num_slots_per_node) for i in range(num_nodes)))

    @property
    def num_slots(self) -> int:
        return sum(node.num_slots for node in self.nodes)

    @property
    def max_slots_per_node(self) -> int:
        return max((node.num_slots for node in self.nodes), default=0)

    def node_of_slots(self) -> tuple[int, ...]:
        """Node index of each slot, shape (num_slots,)."""
        return tuple(i for i, node in enumerate(self.nodes) for _ in range(node.num_slots))

    def part(self, slots: Sequence[int]) -> Cluster:
        """The cluster reduced to these slots (ascending): slot j of the part is `slots[j]`."""
        node_of_slot = self.node_of_slots()
        counts = [0] * len(self.nodes)
        for slot in slots:
            counts[node_of_slot[slot]] += 1
        return Cluster(tuple(Node(node.host, n) for node, n in zip(self.nodes, counts, strict=True)))


def num_nodes_used(slots: Sequence[int], node_of_slot: Sequence[int]) -> int:
    """Number of nodes that hold at least one of `slots`: c(a_i) of [FLEET] Eq. 4."""
    return len({node_of_slot[j] for j in slots})


_VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
# LSF and jsrun set CUDA_VISIBLE_DEVICES only.
_GRANTED = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE", *_VISIBLE)
_NO_DEVICE = ("", "-1", "NoDevFiles")  # the last one is from Slurm, for jobs without GPUs


def visible_gpus(device: str = "auto") -> tuple[str, ...]:
    """Ids of the GPUs that this process may use.

    `CUDA_VISIBLE_DEVICES` or `ROCR_VISIBLE_DEVICES` wins where it is set; otherwise the driver's list counts.

    Args:
        device: `slots.device`; there are none if it is `cpu`.
    """
    if device == "cpu":
        return ()
    for variable in _VISIBLE:
        value = os.environ.get(variable)
        if value is not None:
            return _ids(value)
    driver = Path("/proc/driver/nvidia/gpus")
    return tuple(sorted(path.name for path in driver.iterdir())) if driver.is_dir() else ()


def granted_gpus(environ: Mapping[str, str]) -> str | None:
    """The variable by which the batch system or the user gave GPUs, such as `SLURM_JOB_GPUS=0,1`.

    Returns: None if no variable names a GPU.
    """
    for variable in _GRANTED:
        value = environ.get(variable, "")
        if _ids(value) and not (variable == "SLURM_GPUS_ON_NODE" and value == "0"):
            return f"{variable}={value}"
    return None


def _ids(value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip() not in _NO_DEVICE)

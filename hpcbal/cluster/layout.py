"""The layout of an allocation: nodes with their slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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

"""What the allocation holds: nodes with accelerator slots, numbered once for the whole program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """One machine: ranks on it share memory.

    Attributes:
        host: host name, for people.
        num_gpus: accelerator slots (GPUs, or shares of the cores), >= 0.
    """

    host: str
    num_gpus: int


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes in order; GPUs are numbered from 0 through all nodes, node 0 first."""

    nodes: tuple[Node, ...]

    @classmethod
    def uniform(cls, num_nodes: int, num_gpus_per_node: int) -> Cluster:
        """Make a cluster of equal nodes, for plans and tests."""
        return cls(tuple(Node(f"node{i}", num_gpus_per_node) for i in range(num_nodes)))

    @property
    def num_gpus(self) -> int:
        return sum(node.num_gpus for node in self.nodes)

    @property
    def max_gpus_per_node(self) -> int:
        return max((node.num_gpus for node in self.nodes), default=0)

    def node_of_gpus(self) -> tuple[int, ...]:
        """Node index of each GPU, shape (num_gpus,)."""
        return tuple(i for i, node in enumerate(self.nodes) for _ in range(node.num_gpus))

    def part(self, gpus: Sequence[int]) -> Cluster:
        """The cluster reduced to these GPUs (ascending): GPU j of the part is `gpus[j]`."""
        node_of_gpu = self.node_of_gpus()
        counts = [0] * len(self.nodes)
        for gpu in gpus:
            counts[node_of_gpu[gpu]] += 1
        return Cluster(tuple(Node(node.host, n) for node, n in zip(self.nodes, counts, strict=True)))


def num_nodes_used(gpus: Sequence[int], node_of_gpu: Sequence[int]) -> int:
    """Number of nodes that hold at least one of `gpus`: c(a_i) of [FLEET] Eq. 4."""
    return len({node_of_gpu[j] for j in gpus})

"""Slots of a cluster and of a part of it."""

from __future__ import annotations

from hpcbal.cluster.layout import Cluster, Node


def test_a_part_has_the_nodes_of_the_whole_with_the_slots_that_are_left() -> None:
    whole = Cluster((Node("a", 2), Node("b", 1), Node("c", 3)))
    part = whole.part([1, 3, 5])
    assert part == Cluster((Node("a", 1), Node("b", 0), Node("c", 2)))
    assert part.node_of_slots() == tuple(whole.node_of_slots()[slot] for slot in (1, 3, 5))

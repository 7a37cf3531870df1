"""Which DNNs stay in place, worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from hpcbal.cluster.layout import Cluster, Node
from hpcbal.errors import PolicyError
from hpcbal.policies.flotilla import Flotilla
from hpcbal.policies.placement import Placement
from hpcbal.policies.staying import assign_slots_staying


def place(counts: Mapping[str, int], sizes: Sequence[int], had: Mapping[str, Sequence[int]]) -> Placement:
    """The placement of DNNs with these numbers of slots on nodes of these sizes."""
    rates = (1.0,) * len(counts)
    cluster = Cluster(tuple(Node(f"node{i}", size) for i, size in enumerate(sizes)))
    return assign_slots_staying(
        Flotilla(tuple(counts), tuple(counts.values()), rates, rates, 1.0), cluster, had
    )


def test_dnns_stay_and_others_fill_the_remaining_slots() -> None:
    placement = place({"new": 2, "a": 1, "b": 2}, (4, 4), {"a": (5,), "b": (2, 3)})
    assert placement.slots["a"] == (5,)
    assert placement.slots["b"] == (2, 3)
    assert placement.score == pytest.approx(1 / 2 + 1 + 1 / 2)


def test_a_dnn_that_needs_fewer_slots_stays_on_its_fullest_node() -> None:
    placement = place({"a": 2}, (2, 4), {"a": (1, 3, 4, 5)})
    assert placement.slots == {"a": (3, 4)}


def test_a_dnn_that_needs_more_slots_than_it_had_is_placed_again() -> None:
    placement = place({"a": 2, "b": 1}, (1, 2), {"a": (0,), "b": (0,)})
    assert placement.slots == {"a": (1, 2), "b": (0,)}


def test_a_dnn_moves_where_staying_would_split_another() -> None:
    placement = place({"a": 1, "b": 1, "wide": 2}, (2, 2), {"a": (0,), "b": (2,)})
    assert placement.score == pytest.approx(1 + 1 + 1 / 2)
    assert [placement.slots["a"] == (0,), placement.slots["b"] == (2,)].count(True) == 1


def test_a_dnn_does_not_stay_split_where_it_can_be_together() -> None:
    placement = place({"a": 2, "b": 2}, (2, 2), {"a": (0, 2), "b": (1, 3)})
    assert placement.score == pytest.approx(1.0)


def test_a_dnn_that_left_does_not_matter() -> None:
    assert place({"a": 1}, (2,), {"a": (1,), "gone": (0,)}).slots == {"a": (1,)}


def test_a_flotilla_that_does_not_fit_is_refused() -> None:
    with pytest.raises(PolicyError, match="needs 3 slots, the cluster has 2"):
        place({"a": 3}, (2,), {"a": (0, 1)})

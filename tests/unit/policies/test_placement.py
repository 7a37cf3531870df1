"""Placements worked out by hand: the stages of Alg. 3, unequal nodes, errors."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence

import pytest

from hpcbal.cluster.layout import Cluster, Node
from hpcbal.errors import PolicyError
from hpcbal.policies.flotilla import Flotilla
from hpcbal.policies.placement import Placement, assign_slots, placement_score


def place(counts: Sequence[int], sizes: Sequence[int], max_permutations: int = 1024) -> Placement:
    """Placement of DNNs 'a', 'b', ... with these numbers of slots on nodes of these sizes."""
    names = tuple("abcdefghijklmnopqrstuvwxyz"[: len(counts)])
    rates = (1.0,) * len(counts)
    cluster = Cluster(tuple(Node(f"node{i}", size) for i, size in enumerate(sizes)))
    return assign_slots(Flotilla(names, tuple(counts), rates, rates, 1.0), cluster, max_permutations)


def test_the_score_is_eq_4() -> None:
    cluster = Cluster.uniform(2, 4)
    score = placement_score({"a": (0, 1, 2, 3, 4, 5), "b": (6,), "c": (7,)}, cluster)
    assert score == pytest.approx(2 / 6 + 1 + 1)


def test_whole_nodes_come_first_then_pairs_that_fill_nodes() -> None:
    placement = place((1, 4, 3, 2, 8, 2), (4, 4, 4, 4, 4))
    assert placement.slots == {
        "b": (0, 1, 2, 3),
        "e": (4, 5, 6, 7, 8, 9, 10, 11),
        "a": (12,),
        "c": (13, 14, 15),
        "d": (16, 17),
        "f": (18, 19),
    }
    assert placement.score == pytest.approx(1 / 4 + 2 / 8 + 1 + 1 / 3 + 1 / 2 + 1 / 2)


def test_dnns_of_equal_remainder_are_all_paired() -> None:
    # One memo entry per remainder, as printed, would forget one of the two 1s before the 3s come.
    placement = place((1, 1, 3, 3), (4, 4), max_permutations=1)
    assert placement.score == pytest.approx(2 * (1 + 1 / 3))


def test_the_order_of_the_rest_is_searched() -> None:
    # No DNN fills a node or pairs with another; only 3+2+1 per node keeps all together.
    placement = place((3, 3, 2, 2, 1, 1), (6, 6))
    assert placement.score == pytest.approx(2 * (1 / 3 + 1 / 2 + 1))


def test_slots_stay_free_in_between_where_that_keeps_dnns_together() -> None:
    placement = place((3, 3), (4, 4))
    assert placement.slots == {"a": (0, 1, 2), "b": (4, 5, 6)}


def test_a_large_dnn_is_split_rather_than_small_ones() -> None:
    placement = place((6, 3, 3, 3), (5, 5, 5))
    assert placement.score == pytest.approx(3 / 6 + 3 * (1 / 3))


def test_unequal_nodes_are_filled_by_what_fits_them() -> None:
    placement = place((3, 4, 4), (3, 4, 4))
    assert placement.slots == {"a": (0, 1, 2), "b": (3, 4, 5, 6), "c": (7, 8, 9, 10)}


def test_nodes_without_slots_do_not_count() -> None:
    placement = place((4, 2), (2, 0, 4))
    assert placement.slots == {"a": (2, 3, 4, 5), "b": (0, 1)}


def test_many_dnns_are_placed_within_the_cap() -> None:
    counts = [1 + i % 5 for i in range(26)]
    placement = place(counts, (6,) * 13)
    assert [len(own) for own in placement.slots.values()] == counts
    assert placement.score == pytest.approx(math.fsum(1 / m for m in counts))


def test_an_empty_flotilla_is_placed() -> None:
    assert place((), (4,)) == Placement({}, 0.0)


def test_a_placement_survives_pickling() -> None:
    placement = place((1, 2), (4,))
    assert pickle.loads(pickle.dumps(placement)) == placement


def test_errors_say_what_is_wrong() -> None:
    with pytest.raises(PolicyError, match="needs 5 slots, the cluster has 4"):
        place((5,), (4,))
    with pytest.raises(PolicyError, match="max_permutations 0"):
        place((1,), (4,), max_permutations=0)
    with pytest.raises(PolicyError, match="1 or more"):
        place((1, 0), (4,))

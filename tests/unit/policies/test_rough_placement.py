"""Placements for predictions: each DNN gets its slots, and stays where it can."""

from __future__ import annotations

import pytest

from hpcbal.cluster.layout import Cluster
from hpcbal.policies.flotilla import Flotilla
from hpcbal.policies.placement import assign_slots_roughly


def flotilla(**num_slots: int) -> Flotilla:
    none = (0.0,) * len(num_slots)
    return Flotilla(tuple(num_slots), tuple(num_slots.values()), none, none, 0.0)


@pytest.mark.parametrize("had", [{}, {"b": (4, 5)}, {"a": (0,), "b": (0, 7)}, {"c": (1, 2, 3, 4)}])
def test_every_dnn_gets_its_number_and_no_slot_twice(had: dict[str, tuple[int, ...]]) -> None:
    slots = assign_slots_roughly(flotilla(a=3, b=2, c=3), Cluster.uniform(2, 4), had).slots
    assert {name: len(own) for name, own in slots.items()} == {"a": 3, "b": 2, "c": 3}
    assert sorted(slot for own in slots.values() for slot in own) == list(range(8))


def test_a_dnn_that_needs_no_more_slots_than_it_had_stays() -> None:
    had = {"a": (5, 6, 7), "b": (0,)}
    slots = assign_slots_roughly(flotilla(a=2, b=2), Cluster.uniform(2, 4), had).slots
    assert set(slots["a"]) <= {5, 6, 7}
    assert not set(slots["a"]) & set(slots["b"])

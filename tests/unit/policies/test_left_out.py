"""DNNs do not get back the slots that they are better off without."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbal.policies.staying import avoid_left_out, without_left_out

NODES = (0, 0, 0, 1, 1, 1)


def test_a_group_continues_with_its_other_slots_but_never_with_none() -> None:
    assert without_left_out((1, 3, 5), (3, 9)) == (1, 5)
    assert without_left_out((3, 4), (3, 4)) == (3,)


def test_a_dnn_that_avoids_no_slot_keeps_its_slots() -> None:
    assert avoid_left_out({"a": (0, 1)}, {"a": (2,), "b": (0,)}, [2], NODES) == {"a": (0, 1)}


def test_a_free_slot_of_the_same_node_comes_first() -> None:
    assert avoid_left_out({"a": (0, 1), "b": (3,)}, {"a": (1,)}, [2, 4], NODES) == {"a": (0, 2), "b": (3,)}


def test_a_slot_is_exchanged_with_another_dnn_before_a_second_node_is_used() -> None:
    assert avoid_left_out({"a": (0, 1), "b": (2,)}, {"a": (1,)}, [4], NODES) == {"a": (0, 2), "b": (1,)}


def test_a_slot_that_no_dnn_can_use_stays_idle() -> None:
    slots = {"a": (0, 1), "b": (2,)}
    assert avoid_left_out(slots, {"a": (1,), "b": (1,)}, [], NODES) == {"a": (0,), "b": (2,)}


def test_a_returned_slot_goes_to_a_dnn_that_has_no_other() -> None:
    """`b` has only slot 2, which it avoids; slot 1 is free once `a` has returned it."""
    slots = {"b": (2,), "a": (0, 1)}
    assert avoid_left_out(slots, {"a": (1, 2), "b": (2, 0)}, [], NODES) == {"b": (1,), "a": (0,)}


def test_the_last_slot_is_kept_however_slow() -> None:
    assert avoid_left_out({"a": (0,), "b": (1,)}, {"a": (0, 1)}, [], NODES) == {"a": (0,), "b": (1,)}


owners = st.lists(st.sampled_from(["a", "b", "c", None]), min_size=6, max_size=6)
bans = st.dictionaries(st.sampled_from("abc"), st.sets(st.integers(0, 5)))


@settings(max_examples=200)
@given(owners, bans)
def test_slots_stay_distinct_and_a_group_of_several_holds_none_that_it_avoids(
    owner: list[str | None], left_out: dict[str, set[int]]
) -> None:
    slots = {d: tuple(j for j, holder in enumerate(owner) if holder == d) for d in "abc" if d in owner}
    free = [j for j, holder in enumerate(owner) if holder is None]
    got = avoid_left_out(slots, left_out, free, NODES)
    used = [slot for own in got.values() for slot in own]
    assert len(set(used)) == len(used)
    assert got.keys() == slots.keys()
    for dnn_id, own in got.items():
        assert 1 <= len(own) <= len(slots[dnn_id])
        avoided = left_out.get(dnn_id, set())
        if len(own) > 1:
            assert not avoided & set(own)
        elif avoided & set(own):  # it has no other slot, and could take no free one
            assert not set(range(6)) - set(used) - avoided

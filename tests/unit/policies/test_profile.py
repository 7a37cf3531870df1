"""Saved rates are found again for the same DNN, and only for it."""

from __future__ import annotations

import json

import pytest

from hpcbal.errors import PolicyError
from hpcbal.policies.rates import (
    RateTable,
    profile_by_name,
    profile_from_dict,
    profile_to_dict,
    starts_by_name,
    starts_from_dict,
)

TABLE = RateTable({"a": {1: 10.0, 2: 19.0, 8: 60.0}, "b": {1: 5.5}, "empty": {}}, slots_per_node=4)
KEYS = {"a": "key-a", "b": "key-b", "empty": "key-e"}


def through_json(profile: dict[str, object]) -> dict[str, object]:
    loaded: dict[str, object] = json.loads(json.dumps(profile))
    return loaded


def test_rates_survive_json() -> None:
    kept = through_json(profile_to_dict(TABLE, KEYS))
    assert profile_from_dict(kept, KEYS, 4).measured == {"a": TABLE.measured["a"], "b": {1: 5.5}}


def test_a_changed_dnn_is_not_found_and_a_renamed_one_is() -> None:
    kept = profile_to_dict(TABLE, KEYS)
    assert profile_from_dict(kept, {"a": "key-a2"}, 4).measured == {}
    assert profile_from_dict(kept, {"renamed": "key-b"}, 4).measured == {"renamed": {1: 5.5}}


def test_on_nodes_of_another_size_only_groups_within_a_node_keep_their_rates() -> None:
    kept = profile_to_dict(TABLE, KEYS)
    assert profile_from_dict(kept, KEYS, 8).measured["a"] == {1: 10.0, 2: 19.0}
    assert profile_from_dict(kept, KEYS, 1).measured["a"] == {1: 10.0}


def test_older_entries_stay_and_new_measurements_replace_old_ones() -> None:
    kept = profile_to_dict(TABLE, KEYS)
    newer = RateTable({"a": {2: 20.0, 3: 29.0}}, slots_per_node=4)
    merged = through_json(profile_to_dict(newer, {"a": "key-a"}, previous=kept))
    found = profile_from_dict(merged, KEYS, 4).measured
    assert found == {"a": {1: 10.0, 2: 20.0, 3: 29.0, 8: 60.0}, "b": {1: 5.5}}


def test_by_name_the_entry_written_last_counts() -> None:
    kept = profile_to_dict(TABLE, KEYS)
    kept = profile_to_dict(RateTable({"a": {1: 7.0}}, 4), {"a": "key-a2"}, previous=kept)
    assert profile_by_name(kept, ("a", "b", "c"), 4).measured == {"a": {1: 7.0}, "b": {1: 5.5}}


def test_dnns_that_differ_in_no_rate_are_found_by_each_name() -> None:
    """Such as the members of an ensemble that differ in their seeds, or the folds of a DNN."""
    twins = {"a": "key-a", "b": "key-b", "twin": "key-a"}
    kept = through_json(profile_to_dict(TABLE, twins, start_s={"a": 2.0}))
    rates = profile_by_name(kept, twins, 4).measured
    assert rates["twin"] == rates["a"] == TABLE.measured["a"]
    assert starts_by_name(kept, twins)["twin"] == 2.0
    changed = {**twins, "twin": "key-new"}
    kept = profile_to_dict(RateTable({"twin": {1: 9.0}}, 4), changed, kept)
    kept = through_json(profile_to_dict(TABLE, changed, kept))
    assert profile_by_name(kept, changed, 4).measured["twin"] == {1: 9.0}


@pytest.mark.parametrize("profile", [{}, {"entries": []}, {"format": 99, "entries": {}}, []])
def test_a_value_that_is_not_a_profile_is_refused(profile: dict[str, object]) -> None:
    with pytest.raises(PolicyError, match="measure again"):
        profile_from_dict(profile, KEYS, 4)


@pytest.mark.parametrize(
    "entry",
    [
        "text",
        {},
        {"slots_per_node": 4, "samples_per_s": [1.0]},
        {"slots_per_node": 4, "samples_per_s": {"one": 1.0}},
        {"slots_per_node": None, "samples_per_s": {"1": 1.0}},
    ],
)
def test_a_broken_entry_is_named(entry: object) -> None:
    with pytest.raises(PolicyError, match="entry key-a"):
        profile_from_dict({"format": 1, "entries": {"key-a": entry}}, KEYS, 4)


def test_a_dnn_without_a_key_is_named() -> None:
    with pytest.raises(PolicyError, match="'b'"):
        profile_to_dict(TABLE, {"a": "key-a"})


def test_the_time_of_a_start_is_kept_per_network_until_it_is_measured_again() -> None:
    table = RateTable({"a": {1: 10.0}, "b": {1: 20.0}}, 2)
    keys = {"a": "key of a", "b": "key of b"}
    first = profile_to_dict(table, keys, start_s={"a": 1.5})
    assert starts_from_dict(first, keys) == {"a": 1.5}
    assert starts_by_name(first, ["a", "b", "c"]) == {"a": 1.5}
    second = profile_to_dict(table, keys, first, start_s={"b": 3.0})
    assert starts_from_dict(second, keys) == {"a": 1.5, "b": 3.0}
    assert starts_from_dict(profile_to_dict(table, keys, second, start_s={"a": 2.0}), keys)["a"] == 2.0


@pytest.mark.parametrize("start", [-1.0, float("inf"), True, "soon"])
def test_a_start_that_is_not_a_time_is_refused(start: object) -> None:
    profile = profile_to_dict(RateTable({"a": {1: 10.0}}, 2), {"a": "key"})
    profile["entries"]["key"]["start_s"] = start
    with pytest.raises(PolicyError, match="start_s: got"):
        starts_by_name(profile, ["a"])

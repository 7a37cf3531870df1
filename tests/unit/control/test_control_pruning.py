"""A pruning rule in the state machine: DNNs pause, are promoted, and stop for good."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hpcbal.control.prediction import skip_passes
from hpcbal.control.state import ControlError
from hpcbal.events.ensemble import (
    DnnFailed,
    GroupLeft,
    LeaveRound,
    NextPass,
    ProposeDnns,
    StartGroup,
    StartRound,
)
from hpcbal.events.members import SearchEnded, StopRule
from hpcbal.policies.pruning.rules import Asha, Median

ASHA = Asha(reduction=2, min_epochs=1)


def epochs(driver: Any, values: Mapping[str, float]) -> list[Any]:
    """These DNNs finish their pass with these accuracies; returns all instructions."""
    out: list[Any] = []
    for name, value in values.items():
        out += driver.epoch(name, val_accuracy=value)
    return out


def leaving(instructions: list[Any]) -> dict[str, str]:
    return {i.dnn_id: i.reason for i in instructions if isinstance(i, LeaveRound)}


def planned(instructions: list[Any]) -> set[str]:
    return {
        group.dnn_id
        for i in instructions
        if isinstance(i, StartRound | StartGroup)
        for group in i.plan.groups
    }


def states(driver: Any) -> dict[str, str]:
    return {name: dnn["state"] for name, dnn in driver.ensemble.snapshot()["dnns"].items()}


def test_the_best_half_trains_on_and_the_rest_frees_its_slots(drive: Any) -> None:
    driver = drive(dict.fromkeys("abcd", 4), alpha=0.0, max_slots_per_dnn=1, prune=ASHA)
    assert planned(driver.start()) == set("abcd")
    out = epochs(driver, {"a": 0.1, "b": 0.4, "c": 0.2, "d": 0.3})
    assert leaving(out) == {"a": "pruned", "c": "pruned"}
    assert [i.dnn_ids for i in out if isinstance(i, NextPass)] == [("b", "d")]
    driver.leave("a")
    assert states(driver) == {"a": "pruned", "b": "running", "c": "leaving", "d": "running"}
    driver.leave("c")
    assert leaving(epochs(driver, {"b": 0.4, "d": 0.5})) == {"b": "pruned"}
    driver.leave("b")
    epochs(driver, {"d": 0.5})
    epochs(driver, {"d": 0.5})
    driver.leave("d")
    assert driver.ensemble.outcome == "done"
    snapshot = driver.ensemble.snapshot()
    assert (snapshot["num_done"], snapshot["num_pruned"], snapshot["num_failed"]) == (1, 3, 0)
    assert snapshot["dnns"]["a"]["detail"] == "number 4 of 4 after epoch 1, 2 promoted"


def test_while_a_search_may_propose_worse_ones_dnns_pause_instead(drive: Any) -> None:
    driver = drive(dict.fromkeys("ab", 4), (2,), max_slots_per_dnn=1, prune=ASHA, max_proposals=2)
    driver.start()
    assert leaving(epochs(driver, {"a": 0.1, "b": 0.4}))["a"] == "paused"
    _, asked = driver.leave("a", "b")
    assert asked == ProposeDnns(1)
    out = driver.send(SearchEnded("nothing"))
    assert (states(driver)["a"], planned(out)) == ("pruned", {"b"})


def test_a_paused_dnn_is_no_candidate_until_it_is_promoted(drive: Any) -> None:
    driver = drive(dict.fromkeys("abc", 4), (1,), max_slots_per_dnn=1, prune=ASHA)
    assert planned(driver.start()) == {"a"}
    assert leaving(epochs(driver, {"a": 0.5})) == {"a": "paused"}
    assert planned(driver.leave("a")) == {"b"}
    assert states(driver)["a"] == "paused"
    out = epochs(driver, {"b": 0.4})
    assert leaving(out) == {"b": "pruned"}, "of three, one is promoted"
    assert states(driver)["a"] == "waiting", "the best of two"
    assert planned(driver.leave("b")) == {"a"}


def test_a_failed_dnn_leaves_its_place_to_one_that_waits(drive: Any) -> None:
    driver = drive(dict.fromkeys("abc", 4), (1,), max_slots_per_dnn=1, prune=Asha(3, 1))
    driver.start()
    epochs(driver, {"a": 0.5})
    driver.leave("a")
    epochs(driver, {"b": 0.6})
    assert planned(driver.leave("b")) == {"c"}
    assert driver.ensemble.state.paused.keys() == {"b"}, "a cannot be the best of three any more"
    driver.send(DnnFailed("c", "nan", "loss is NaN"))
    assert planned(driver.send(GroupLeft("c"))) == {"b"}


@pytest.mark.parametrize("is_saved", [True, False])
def test_how_long_a_checkpoint_takes_decides_nothing(drive: Any, is_saved: bool) -> None:
    """`early` converges below the rung, so `a` is the best that will ever reach it."""
    target = StopRule(target=0.9, max_epochs=9)
    driver = drive(
        {"early": target, "a": 9, "b": 9, "other": 9},
        alpha=0.0,
        max_slots_per_dnn=1,
        prune=Asha(3, 2),
        may_be_pruned={"early", "a", "b"},
    )
    driver.start()
    out = epochs(driver, {"early": 0.95, "a": 0.3, "b": 0.2, "other": 0.1})
    assert leaving(out) == {"early": "converged"}
    if is_saved:
        driver.leave("early")
    assert leaving(epochs(driver, {"a": 0.3, "b": 0.2, "other": 0.1})) == {"b": "pruned"}


def test_alone_the_dnn_with_most_epochs_gets_the_next_slot(drive: Any) -> None:
    driver = drive(dict.fromkeys("abcd", 4), (1,), paradigm="independent", prune=ASHA)
    (first,) = planned(driver.start())
    assert leaving(epochs(driver, {first: 0.1})) == {first: "paused"}
    (second,) = planned(driver.leave(first))
    assert epochs(driver, {second: 0.2})[0].dnn_ids == (second,), "it is promoted at once"


def test_dnns_that_the_rule_does_not_cover_train_to_their_ends(drive: Any) -> None:
    driver = drive(
        dict.fromkeys("abc", 2), alpha=0.0, max_slots_per_dnn=1, prune=ASHA, may_be_pruned={"a", "b"}
    )
    driver.start()
    assert leaving(epochs(driver, {"a": 0.3, "b": 0.2, "c": 0.1})) == {"b": "pruned"}


def test_the_median_rule_prunes_at_the_end_of_a_pass(drive: Any) -> None:
    driver = drive(dict.fromkeys("abc", 4), alpha=0.0, max_slots_per_dnn=1, prune=Median(2, 2))
    driver.start()
    assert leaving(epochs(driver, {"a": 0.1, "b": 0.4, "c": 0.5})) == {}
    assert leaving(epochs(driver, {"a": 0.1, "b": 0.4, "c": 0.5})) == {"a": "pruned"}


def test_simulated_passes_are_not_skipped_where_one_may_be_pruned(drive: Any) -> None:
    driver = drive(dict.fromkeys("ab", 9), alpha=0.0, max_slots_per_dnn=1, prune=ASHA)
    driver.start()
    with pytest.raises(ControlError, match="may be pruned"):
        skip_passes(driver.ensemble, ("a", "b"), 2)

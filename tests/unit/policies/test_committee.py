"""Which DNNs the rule `committee` stops, where it is clear which ones it should."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hpcbal.ensembling.evidence import encoded
from hpcbal.errors import InputError
from hpcbal.policies.pruning.committee import Chosen, Committee, mean_rise
from hpcbal.policies.pruning.rules import Candidate

NUM_ITEMS = 200
EVEN = np.arange(NUM_ITEMS) % 2 == 0
EVERY = np.ones(NUM_ITEMS, bool)
MOST = 20


def knows(items: Any, sure: float, epochs: int, falls: float = 1.0) -> tuple[list[float], list[str]]:
    """Values and evidence of a DNN that learns some items, and is at chance on the others.

    Args:
        sure: its loss on the items that it learns, after the first epoch.
        falls: power of the epoch with which that falls.
    """
    values, evidence = [], []
    for epoch in range(1, epochs + 1):
        losses = np.where(items, sure * epoch**-falls, np.log(10.0))
        values.append(-float(losses.mean()))
        evidence.append(encoded(np.exp(-losses), "classes"))
    return values, evidence


def dnn(name: str, items: Any, sure: float, epochs: int = 16, falls: float = 1.0, **others: Any) -> Candidate:
    values, evidence = knows(items, sure, epochs, falls)
    return Candidate(name, values, MOST, evidence=evidence, **others)


def stopped(rule: Committee, candidates: Sequence[Candidate]) -> set[str]:
    """The DNNs that wait, or never train on."""
    ruling = rule.rule(candidates)
    return {*ruling.paused, *ruling.pruned}


def test_all_wait_until_all_have_trained_as_many_epochs() -> None:
    rule = Committee(min_epochs=2)
    early, late = dnn("early", EVERY, 1.0, 2), dnn("late", EVERY, 1.0, 1)
    assert rule.rule([early, late]).paused == {"early": "after epoch 2, 1 to come"}
    assert not rule.rule([early, late]).pruned
    begun = replace(early, is_begun=True)
    assert not rule.rule([begun, late]).paused
    assert not rule.rule([early, replace(late, is_live=False)]).paused


def test_one_that_joins_later_holds_up_nobody() -> None:
    rule, new = Committee(2, 0.002), dnn("new", EVERY, 1.0, 1)
    flat, rising = dnn("flat", EVERY, 0.05, falls=0.0), dnn("rising", EVERY, 0.5)
    assert stopped(rule, [flat, rising, new]) == {"flat"}
    assert stopped(rule, [flat, rising, new, dnn("newer", EVERY, 1.0, 2)]) == {"flat", "newer"}
    assert not rule.rule([flat, new]).pruned


def test_what_others_know_better_is_not_needed_and_what_they_lack_is() -> None:
    left, right = dnn("left", EVEN, 1.0), dnn("right", ~EVEN, 1.0)
    worse = dnn("worse", EVEN, 2.0, falls=0.05)
    ruling = Committee(1, 0.002).rule([left, right, worse])
    assert ruling.paused == {"worse": "the committee needs no more than its epoch 16"}
    assert not ruling.pruned, "left or right may disappoint"
    over = [replace(each, is_live=False) for each in (left, right)]
    assert set(Committee(1, 0.002).rule([*over, worse]).pruned) == {"worse"}


def test_a_dnn_that_no_longer_learns_stops_but_stays_in_the_committee() -> None:
    flat, rising = dnn("flat", EVERY, 0.05, falls=0.0), dnn("rising", EVERY, 0.5)
    assert stopped(Committee(1, 0.002), [flat, rising]) == {"flat"}
    done = replace(dnn("done", EVERY, 0.02, falls=0.0), is_live=False)
    assert set(Committee(1, 0.002).rule([done, flat]).pruned) == {"flat"}
    failed = replace(done, has_failed=True)
    assert not stopped(Committee(1, 0.0), [failed, rising])


def test_one_that_is_behind_may_still_come_early_on_but_not_late() -> None:
    ahead, behind = dnn("ahead", EVERY, 0.5, 2, 0.3), dnn("behind", EVERY, 0.9, 2, 0.3)
    assert not stopped(Committee(1, 0.0), [ahead, behind])
    ahead, behind = dnn("ahead", EVERY, 0.5, 16, 0.3), dnn("behind", EVERY, 0.9, 16, 0.3)
    assert "behind" in stopped(Committee(1, 0.002), [ahead, behind])


def test_more_tolerance_never_keeps_more_and_the_answer_is_always_the_same() -> None:
    parts = [np.arange(NUM_ITEMS) % 5 == k for k in range(5)]
    dnns = [dnn(f"net{k}", part, 1.0, 6, 0.4) for k, part in enumerate(parts)]
    given_up = [stopped(Committee(1, tolerance), dnns) for tolerance in (0.0, 0.01, 0.1, 1.0)]
    assert all(less <= more for less, more in itertools.pairwise(given_up))
    assert Committee(1, 0.01).rule(dnns) == Committee(1, 0.01).rule(dnns)
    assert given_up[0] < given_up[-1]


def test_dnns_whose_predictions_are_not_known_are_not_judged() -> None:
    unknown = replace(dnn("unknown", EVEN, 3.0, falls=0.0), evidence=[None] * 16)
    other = replace(unknown, name="other", evidence=[encoded(np.ones(3), "classes")] * 16)
    known = [dnn(f"known{i}", EVERY, 0.5) for i in range(3)]
    assert not {"unknown", "other"} & stopped(Committee(1, 0.002), [unknown, other, *known])
    assert not stopped(Committee(1, 0.002), [unknown])


def test_items_that_one_dnn_lacks_are_compared_for_none() -> None:
    values, evidence = knows(EVEN, 1.0, 16)
    gap = np.where(EVEN, np.nan, 0.1)
    lacks = Candidate("lacks", values, MOST, evidence=[*evidence[:-1], encoded(gap, "classes")])
    Committee(1, 0.002).rule([lacks, dnn("b", ~EVEN, 1.0)])
    nothing = Candidate(
        "nothing", values, MOST, evidence=[encoded(np.full(NUM_ITEMS, np.nan), "classes")] * 16
    )
    assert not stopped(Committee(1, 0.002), [nothing, dnn("b", EVERY, 1.0)])
    flat, rising = dnn("flat", EVERY, 0.05, falls=0.0), dnn("rising", EVERY, 0.5)
    assert stopped(Committee(1, 0.002), [nothing, flat, rising]) == {"flat"}, "as without the diverged one"


def errors(name: str, offset: Any, falls: float) -> Candidate:
    """A DNN that predicts values, each off by that much over a power of the epoch."""
    rows = [np.asarray(offset) * epoch**-falls for epoch in range(1, 17)]
    values = [-float(np.square(row).mean()) for row in rows]
    return Candidate(name, values, MOST, evidence=[encoded(row, "values") for row in rows])


def test_values_are_combined_by_their_errors() -> None:
    signs = np.random.default_rng(0).choice([-1.0, 1.0], NUM_ITEMS)
    left = errors("left", signs * np.where(EVEN, 0.1, 1.0), 0.5)
    right = errors("right", signs * np.where(EVEN, 1.0, 0.1), 0.5)
    worse = errors("worse", signs * 3.0, 0.0)
    assert stopped(Committee(1, 0.002), [left, right, worse]) == {"worse"}


@pytest.mark.parametrize(
    ("wrong", "key"), [({"min_epochs": 0}, "min_epochs"), ({"tolerance": -0.1}, "tolerance")]
)
def test_arguments_out_of_range_are_refused(wrong: dict[str, Any], key: str) -> None:
    with pytest.raises(InputError, match=f"prune.{key}"):
        Committee(**wrong)


def test_a_committee_without_loss_loses_by_any_rise() -> None:
    assert mean_rise([0.0, 2.0], [Chosen(0.0, {}), Chosen(3.0, {})]) == 0.25
    assert mean_rise([0.0, 2.0], [Chosen(1e-9, {}), Chosen(2.0, {})]) == np.inf

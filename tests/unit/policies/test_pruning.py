"""Pruning rules on small examples."""

from __future__ import annotations

import math

import pytest

from hpcbal.errors import InputError
from hpcbal.policies.pruning.rules import Asha, Candidate, Median


def at_first_rung(*values: float, coming: int = 0) -> list[Candidate]:
    """DNNs a, b, ... that have trained one epoch, and others that have trained none."""
    return [
        *(Candidate(chr(97 + i), (value,), 9) for i, value in enumerate(values)),
        *(Candidate(f"new{i}", (), 9) for i in range(coming)),
    ]


def test_rungs_grow_by_the_reduction_and_end_before_the_last_epoch() -> None:
    assert Asha(3, 1).rungs(27) == (1, 3, 9)
    assert Asha(3, 1).rungs(28) == (1, 3, 9, 27)
    assert Asha(4, 2).rungs(2) == ()


def test_the_best_third_of_a_rung_is_promoted_and_the_rest_pruned_when_no_other_comes() -> None:
    ruling = Asha(3).rule(at_first_rung(0.1, 0.6, 0.3, 0.2, 0.5, 0.4))
    assert set(ruling.pruned) == {"a", "c", "d", "f"}
    assert ruling.pruned["f"] == "number 3 of 6 after epoch 1, 2 promoted"
    assert not ruling.paused


def test_a_dnn_waits_while_others_may_still_make_it_one_of_the_best() -> None:
    ruling = Asha(3).rule(at_first_rung(0.1, 0.6, 0.3, coming=3))
    assert set(ruling.paused) == {"c"}, "b is promoted; of six, two will be"
    assert set(ruling.pruned) == {"a"}


def test_no_dnn_is_promoted_before_there_are_as_many_as_the_reduction() -> None:
    assert set(Asha(3).rule(at_first_rung(0.1, 0.6, coming=9)).paused) == {"a", "b"}


def test_a_rung_that_no_other_dnn_reaches_promotes_the_best_one_of_two() -> None:
    assert set(Asha(3).rule(at_first_rung(0.1, 0.6)).pruned) == {"a"}


def test_the_first_of_equally_good_dnns_is_promoted() -> None:
    assert set(Asha(2).rule(at_first_rung(0.5, 0.5)).pruned) == {"b"}


def test_a_dnn_counts_with_its_best_epoch_and_not_with_epochs_after_the_rung() -> None:
    rule = Asha(2, min_epochs=2)
    early = Candidate("early", (0.9, 0.1), 9)
    late = Candidate("late", (0.2, 0.3, 1.0), 9)
    assert rule.rule([early, late]).pruned == {}
    assert set(rule.rule([Candidate("a", (0.1, 0.3), 9), late]).pruned) == set(), "a has the same best value"


def test_a_failed_dnn_keeps_the_size_of_its_rung_and_leaves_its_place_to_the_next() -> None:
    failed = Candidate("failed", (0.9,), 9, is_live=False, has_failed=True)
    ruling = Asha(3).rule([failed, *at_first_rung(0.5, 0.4)])
    assert set(ruling.pruned) == {"b"}


def test_a_done_dnn_keeps_its_place() -> None:
    done = Candidate("done", (0.9,), 1, is_live=False)
    assert set(Asha(2).rule([done, *at_first_rung(0.5)]).pruned) == {"a"}


def test_a_dnn_that_has_begun_its_next_epoch_is_not_stopped() -> None:
    begun = Candidate("begun", (0.1,), 9, is_begun=True)
    ruling = Asha(2).rule([begun, *at_first_rung(0.5, 0.4)])
    assert set(ruling.pruned) == {"b"}


def test_a_value_that_is_no_number_is_the_worst() -> None:
    assert set(Asha(2).rule(at_first_rung(-math.inf, 0.0)).pruned) == {"a"}


def test_the_median_rule_compares_the_best_value_with_the_average_courses_of_others() -> None:
    others = [Candidate(f"o{i}", (0.1 * i, 0.3 * i), 9) for i in range(5)]  # averages 0, 0.2, ... 0.8
    assert not Median(2, 5).rule([*others, Candidate("a", (0.5, 0.1), 9)]).pruned.get("a")
    worse = Median(2, 5).rule([*others, Candidate("a", (0.3, 0.3), 9)])
    assert worse.pruned["a"] == "below the median of 5 others after epoch 2"


def test_the_median_rule_waits_for_its_warm_up_and_for_enough_peers() -> None:
    candidates = at_first_rung(0.1, 0.5, 0.6)
    assert set(Median(1, 2).rule(candidates).pruned) == {"a"}
    assert not Median(2, 2).rule(candidates).pruned
    assert not Median(1, 3).rule(candidates).pruned


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Asha(1), "prune.reduction: got 1"),
        (lambda: Asha(3, 0), "prune.min_epochs: got 0"),
        (lambda: Median(0), "prune.warmup_epochs: got 0"),
        (lambda: Median(1, 0), "prune.min_peers: got 0"),
    ],
)
def test_arguments_out_of_range_are_refused(make, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        make()

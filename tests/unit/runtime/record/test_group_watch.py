"""Stragglers are named; offers and uneven slots with even shares are reported once."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from ledger_lines import a

from hpcbal.events.ensemble import EpochDone, GroupPlan, StartProfiling
from hpcbal.events.history import BalanceFacts, EpochFacts, RankFacts, Straggler
from hpcbal.runtime.record.group_watch import GroupWatch


def facts(*compute_s: float, balance: BalanceFacts | None = None) -> EpochFacts:
    longest_s, zeros = max(compute_s), (0.0,) * len(compute_s)
    ranks = RankFacts(
        wait_s=zeros,
        compute_s=compute_s,
        collective_s=tuple(longest_s - seconds for seconds in compute_s),
        samples=(100,) * len(compute_s),
        worked_s=compute_s,
    )
    return a(EpochFacts, ranks=ranks, balance=balance)


def watch() -> GroupWatch:
    watching = GroupWatch()
    watching.handle(StartProfiling((GroupPlan("a", (4, 7)),)))
    return watching


def look(
    watching: GroupWatch, name: str, measured: EpochFacts, offered_slot: int | None = None
) -> SimpleNamespace:
    """Return the findings of an epoch."""
    event, notes = watching.completed(EpochDone(name, 0, {}, 1.0, 0.0, offered_slot, measured))
    saves, straggler = event.balancing_would_save, event.straggler
    return SimpleNamespace(notes=notes, straggler=straggler, balancing_would_save=saves)


def test_a_straggler_stays_named_until_an_epoch_without() -> None:
    watching = watch()
    assert look(watching, "a", facts(1.0, 2.0)).straggler == Straggler(7, "compute", 1.0)
    assert watching.stragglers["a"].slot == 7
    assert look(watching, "a", facts(1.0, 1.0)).straggler is None
    assert watching.stragglers == {}


def test_unlike_slots_with_even_shares_are_pointed_out_once_and_not_at_the_first_epoch() -> None:
    watching, unlike = watch(), facts(1.0, 2.0)
    notes = [look(watching, "a", unlike).notes for _ in range(5)]
    assert [len(reported) for reported in notes] == [0, 1, 0, 0, 0]
    assert "'--set dnns.a.balance=fitted' training would take about 33 % less time" in notes[1][0]
    assert (look(watching, "a", unlike).balancing_would_save or 0.0) > 0.3
    watching.handle(StartProfiling((GroupPlan("a", (4, 8)), GroupPlan("b", (1, 2)))))
    again = [look(watching, name, unlike).notes for _ in range(3) for name in "ab"]
    assert not any(again), "it was reported already"


def test_epochs_of_other_groups_do_not_add_up() -> None:
    watching, unlike = watch(), facts(1.0, 2.0)
    look(watching, "a", unlike)
    watching.handle(StartProfiling((GroupPlan("a", (4, 8)),)))
    assert look(watching, "a", unlike).notes == []
    look(watching, "a", facts(1.0, 1.0))
    assert look(watching, "a", unlike).notes == []
    assert len(look(watching, "a", unlike).notes) == 1


def test_nothing_is_advised_where_shares_are_balanced_already() -> None:
    watching = watch()
    for _ in range(4):
        found = look(watching, "a", facts(1.0, 2.0, balance=BalanceFacts((1, 1))))
        assert (found.notes, found.balancing_would_save) == ([], None)


def test_a_slot_better_left_out_is_reported_once_unless_it_is_offered() -> None:
    watching, offer = watch(), facts(1.0, 2.0, balance=BalanceFacts((1, 1), remove=1))
    assert look(watching, "a", offer).notes == ["warning: a would be faster without slot 7 of its group"]
    assert look(watching, "a", offer).notes == []
    assert look(watch(), "a", offer, offered_slot=7).notes == []


def test_a_group_of_one_has_nothing_to_report() -> None:
    watching = GroupWatch()
    watching.handle(StartProfiling((GroupPlan("a", (4,)),)))
    found = look(watching, "a", a(EpochFacts))
    assert (found.notes, found.straggler, found.balancing_would_save) == ([], None, None)


def test_a_mark_stands_on_the_track_of_the_late_slot_or_of_the_first_one() -> None:
    watching, event = watch(), EpochDone("a", 3, {}, 1.0)
    assert watching.mark(event) is None
    marked = watching.mark(replace(event, straggler=Straggler(7, "input", 0.25)))
    assert marked is not None
    assert (marked[0], marked[1].name) == (7, "a waited 0.25 s in pass 3: input")
    marked = watching.mark(replace(event, straggler=Straggler(None, "collective", 0.5)))
    assert marked is not None
    assert marked[0] == 4

"""Stragglers are named, offers told once, and unlike GPUs with even shares pointed out once."""

from __future__ import annotations

from typing import Any

from hpcbal.control.messages import EpochDone, GroupPlan
from hpcbal.runtime.record.group_watch import GroupWatch
from hpcbal.telemetry.views.straggler import Straggler


def ranks(*compute_s: float) -> dict[str, Any]:
    longest_s = max(compute_s)
    return {
        "wait_s": [0.0] * len(compute_s),
        "compute_s": list(compute_s),
        "collective_s": [longest_s - seconds for seconds in compute_s],
        "samples": [100] * len(compute_s),
        "worked_s": list(compute_s),
    }


def watch() -> GroupWatch:
    watching = GroupWatch()
    watching.join([GroupPlan("a", (4, 7))])
    return watching


def test_a_straggler_stays_named_until_an_epoch_without() -> None:
    watching = watch()
    more, _ = watching.look("a", {"ranks": ranks(1.0, 2.0)})
    assert more["straggler"] == {"gpu": 7, "why": "compute", "late_s": 1.0}
    assert watching.stragglers["a"].gpu == 7
    more, _ = watching.look("a", {"ranks": ranks(1.0, 1.0)})
    assert "straggler" not in more
    assert watching.stragglers == {}


def test_unlike_gpus_with_even_shares_are_pointed_out_once_and_not_at_the_first_epoch() -> None:
    watching, unlike = watch(), {"ranks": ranks(1.0, 2.0)}
    notes = [watching.look("a", unlike)[1] for _ in range(5)]
    assert [len(told) for told in notes] == [0, 1, 0, 0, 0]
    assert "'--set dnns.a.balance=fitted' it would train some 33% shorter" in notes[1][0]
    assert watching.look("a", unlike)[0]["balancing_would_save"] > 0.3
    watching.join([GroupPlan("a", (4, 8))])
    assert not any(watching.look("a", unlike)[1] for _ in range(3)), "it was told already"


def test_epochs_of_other_groups_do_not_add_up() -> None:
    watching, unlike = watch(), {"ranks": ranks(1.0, 2.0)}
    watching.look("a", unlike)
    watching.join([GroupPlan("a", (4, 8))])
    assert watching.look("a", unlike)[1] == []
    watching.look("a", {"ranks": ranks(1.0, 1.0)})
    assert watching.look("a", unlike)[1] == []
    assert len(watching.look("a", unlike)[1]) == 1


def test_nothing_is_advised_where_shares_are_balanced_already() -> None:
    watching = watch()
    for _ in range(4):
        more, notes = watching.look("a", {"ranks": ranks(1.0, 2.0), "balance": {"shares": [1, 1]}})
        assert notes == []
        assert "balancing_would_save" not in more


def test_a_gpu_better_left_out_is_told_once_unless_it_is_offered() -> None:
    watching, offer = watch(), {"ranks": ranks(1.0, 2.0), "balance": {"remove": 1}}
    assert watching.look("a", offer)[1] == ["warning: a would be faster without GPU 7 of its group"]
    assert watching.look("a", offer)[1] == []
    taken = watch()
    taken.note_offer("a", 7)
    assert taken.look("a", offer)[1] == []


def test_a_group_of_one_has_nothing_to_tell() -> None:
    watching = GroupWatch()
    watching.join([GroupPlan("a", (4,))])
    assert watching.look("a", {}) == ({}, [])


def test_a_mark_stands_on_the_track_of_the_late_gpu_or_of_the_first_one() -> None:
    watching, event = watch(), EpochDone("a", 3, {}, 1.0)
    assert watching.mark(event) is None
    watching.stragglers["a"] = Straggler(7, "input", 0.25)
    marked = watching.mark(event)
    assert marked is not None
    assert (marked[0], marked[1].name) == (7, "a waited 0.25 s in pass 3: input")
    watching.stragglers["a"] = Straggler(None, "collective", 0.5)
    marked = watching.mark(event)
    assert marked is not None
    assert marked[0] == 4

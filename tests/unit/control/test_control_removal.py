"""A slot that slows down its group is left out, one event after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from hpcbal.control.ensemble import replay
from hpcbal.control.progress import ResumeState
from hpcbal.events.ensemble import (
    DnnFailed,
    EpochDone,
    Finish,
    GroupLeft,
    LeaveOut,
    LeaveRound,
    NextPass,
    StartRound,
    StopStream,
    SuspendRequested,
)
from hpcbal.events.history import Position

Drive = Callable[..., Any]

# `wide` takes what the others leave; `small` and `other` gain nothing from a second slot.
RATES = {
    "wide": [62.0, 120.0, 175.0, 230.0],
    "small": [180.0, 180.0, 180.0, 180.0],
    "other": [180.0, 180.0, 180.0, 180.0],
}


def groups_of(instructions: Sequence[Any]) -> dict[str, tuple[int, ...]]:
    """Slots by DNN of the round that starts."""
    (start,) = [instruction for instruction in instructions if isinstance(instruction, StartRound)]
    return {group.dnn_id: group.slots for group in start.plan.groups}


@pytest.mark.parametrize("paradigm", ["global", "local"])
def test_the_round_continues_without_the_slot_and_moves_no_other_dnn(drive: Drive, paradigm: str) -> None:
    run = drive({"small": 9, "wide": 9}, (4,), RATES, paradigm=paradigm, alpha=0.5)
    first = groups_of(run.start())
    assert len(first["wide"]) == 3
    slow = first["wide"][1]
    why = f"wide goes on without slot {slow}"
    assert run.epoch("wide", offers={"wide": slow}) == []
    assert run.epoch("small") == [
        LeaveOut("wide", slow),
        LeaveRound("small", "regroup", why),
        LeaveRound("wide", "regroup", why),
    ]
    instructions = run.leave("small", "wide")
    assert instructions[0] == StopStream(0, continues=True)
    assert groups_of(instructions) == {"small": first["small"], "wide": (first["wide"][0], first["wide"][2])}
    assert instructions[1].plan.first_pass == 1
    assert instructions[1].plan.num_slots == 4
    assert instructions[1].plan.predicted_rate_samples_per_s == {"small": 180.0, "wide": 120.0}
    assert run.epoch("small", "wide") == [NextPass(("small", "wide"), 2, ("small", "wide"))]


def test_with_local_a_dnn_that_waits_gets_the_slot_at_once(drive: Drive) -> None:
    run = drive({"wide": 9, "other": 9}, (2,), RATES, paradigm="local", max_slots_per_dnn=2)
    run.ensemble.state.kept = {"wide": (0, 1)}
    assert groups_of(run.start()) == {"wide": (0, 1)}
    run.epoch("wide", offers={"wide": 1})
    assert groups_of(run.leave("wide")) == {"wide": (0,), "other": (1,)}


def test_with_global_an_idle_slot_counts_against_alpha(drive: Drive) -> None:
    """Three of four slots are too few, so a new flotilla is formed: slot 2 then goes to another DNN."""
    run = drive({"wide": 9, "small": 1, "other": 9}, (4,), RATES, alpha=0.8)
    run.ensemble.state.kept = {}
    first = groups_of(run.start())
    slow = first["wide"][-1] if "wide" in first else None
    while slow is None or len(first["wide"]) == 1:
        first = groups_of(finish_pass(run))
        slow = first["wide"][-1]
    second = groups_of(finish_pass(run, offers={"wide": slow}))
    assert slow not in second["wide"]


def finish_pass(run: Any, offers: dict[str, int] | None = None) -> list[Any]:
    """Every group finishes its pass, and leaves if asked to; returns the instructions after the last one."""
    instructions = run.epoch(*list(run.ensemble.state.groups), offers=offers)
    for instruction in instructions:
        if isinstance(instruction, LeaveRound):
            instructions = run.leave(instruction.dnn_id)
    return list(instructions)


def test_slots_are_removed_one_after_another(drive: Drive) -> None:
    run = drive({"wide": 9}, (4,), RATES)
    assert groups_of(run.start()) == {"wide": (0, 1, 2, 3)}
    assert run.epoch("wide", offers={"wide": 9}) == [NextPass(("wide",), 1, ("wide",))]  # not one of its own
    assert run.epoch("wide", offers={"wide": 2})[0] == LeaveOut("wide", 2)
    assert groups_of(run.leave("wide")) == {"wide": (0, 1, 3)}
    assert run.epoch("wide", offers={"wide": 1})[0] == LeaveOut("wide", 1)
    assert groups_of(run.leave("wide")) == {"wide": (0, 3)}
    assert run.ensemble.state.left_out == {"wide": (2, 1)}


def test_an_offer_is_forgotten_with_its_pass_if_others_have_begun_the_next(drive: Drive) -> None:
    """After a kill, `wide` is a pass behind: the round continues until both are at the same point."""
    run = drive({"wide": 9, "small": 9}, (4,), RATES, alpha=0.5)
    run.start()
    run.epoch("wide", "small")
    run.epoch("small")
    left = run.ensemble.resume_state()
    ahead = replace(left.dnns["small"], position=Position(2, 40))
    behind = replace(left.dnns["wide"], position=Position(0, 100))
    resume = replace(left, next_pass=3, dnns={"wide": behind, "small": ahead})
    again = drive({"wide": 9, "small": 9}, (4,), RATES, resume, alpha=0.5)
    slow = groups_of(again.start())["wide"][0]
    assert again.epoch("wide", offers={"wide": slow}) == [NextPass(("wide",), 2, ("wide",))]
    both = again.epoch("small", "wide")
    assert both == [NextPass(("small", "wide"), 3, ("small", "wide"))]
    assert again.ensemble.state.left_out == {}


def test_a_group_never_shrinks_below_one(drive: Drive) -> None:
    run = drive({"wide": 9}, (2,), RATES)
    run.start()
    run.epoch("wide", offers={"wide": 0})
    assert groups_of(run.leave("wide")) == {"wide": (1,)}
    assert run.epoch("wide", offers={"wide": 1}) == [NextPass(("wide",), 2, ("wide",))]


def test_no_round_ends_again_and_again_for_a_slot_that_no_dnn_can_use(drive: Drive) -> None:
    """Alg. 2 wants all four slots for `wide` in every flotilla, and three are below alpha."""
    run = drive({"wide": 9}, (4,), RATES, alpha=1.0)
    run.start()
    run.epoch("wide", offers={"wide": 3})
    run.leave("wide")
    for pass_index in range(2, 9):
        assert run.epoch("wide") == [NextPass(("wide",), pass_index, ("wide",))]


@pytest.mark.parametrize("end", ["converged", "failed", "suspended"])
def test_offers_of_leaving_groups_change_nothing(drive: Drive, end: str) -> None:
    run = drive({"wide": 1 if end == "converged" else 9, "small": 9}, (4,), RATES, alpha=0.0)
    offer = {"wide": groups_of(run.start())["wide"][0]}
    if end == "suspended":
        run.send(SuspendRequested("walltime"))
    run.epoch("wide", offers=offer)
    if end == "failed":
        run.send(DnnFailed("wide", "nan", "loss is NaN"))
        run.send(GroupLeft("wide"))
    instructions = run.epoch("small")
    assert not any(isinstance(each, LeaveOut) for each in instructions)
    assert run.ensemble.state.left_out == {}


def test_a_group_that_stops_before_the_pass_is_decided_must_offer_again(drive: Drive) -> None:
    run = drive({"wide": 9, "small": 9}, (4,), RATES, alpha=0.5)
    first = groups_of(run.start())
    slow = first["wide"][1]
    assert run.epoch("wide", offers={"wide": slow}) == []
    run.send(SuspendRequested("walltime"))
    run.save("small", Position(0, 40))
    run.send(GroupLeft("small"))
    run.leave("wide")
    resume = run.ensemble.resume_state()
    assert resume.left_out == {}
    again = drive({"wide": 9, "small": 9}, (4,), RATES, resume, alpha=0.5)
    assert groups_of(again.start()) == first
    assert again.epoch("small") == [NextPass(("small", "wide"), 1, ("small", "wide"))]
    assert LeaveOut("wide", slow) in again.epoch("small", "wide", offers={"wide": slow})


def left_out_of_wide(drive: Drive) -> ResumeState:
    """Return the state of a run that was stopped in the pass after slot 1 was left out."""
    run = drive({"wide": 9}, (4,), RATES, alpha=0.5)
    run.start()
    run.epoch("wide", offers={"wide": 1})
    run.leave("wide")
    run.send(SuspendRequested("walltime"))
    run.save("wide", Position(1, 40))
    assert run.send(GroupLeft("wide"))[-1] == Finish("suspended")
    resume = run.ensemble.resume_state()
    assert resume.left_out == {"wide": (1,)}
    return cast(ResumeState, resume)


def test_a_later_start_on_the_same_hosts_remembers_left_out_slots(drive: Drive) -> None:
    again = drive({"wide": 9}, (4,), RATES, left_out_of_wide(drive), alpha=0.5)
    assert groups_of(again.start()) == {"wide": (0, 2, 3)}


@pytest.mark.parametrize("hosts", [("host", (3, 1)), ("other", (4,))])
def test_on_other_hosts_no_slot_is_avoided(drive: Drive, hosts: tuple[str, tuple[int, ...]]) -> None:
    """On new hosts the numbers mean other slots; the pass is finished, and the next round has all four."""
    name, slots_per_node = hosts
    resume = left_out_of_wide(drive)
    elsewhere = drive({"wide": 9}, slots_per_node, RATES, resume, host=name, alpha=0.5)
    assert groups_of(elsewhere.start()) == {"wide": (0, 1, 2, 3)}
    assert elsewhere.ensemble.state.plan.start == {"wide": Position(1, 40)}
    assert elsewhere.ensemble.resume_state().left_out == {}


def left_inside_a_pass_of_small(drive: Drive) -> tuple[ResumeState, dict[str, tuple[int, ...]]]:
    """A run that was stopped after `wide`, with a slot left out, was done; and its groups."""
    run = drive({"wide": 2, "small": 9}, (4,), RATES, alpha=0.0)
    slow = groups_of(run.start())["wide"][0]
    run.epoch("wide", "small", offers={"wide": slow})
    groups = groups_of(run.leave("wide", "small"))
    run.epoch("wide", "small")
    run.leave("wide")
    run.send(SuspendRequested("walltime"))
    run.save("small", Position(2, 40))
    assert run.send(GroupLeft("small"))[-1] == Finish("suspended")
    resume = run.ensemble.resume_state()
    assert resume.left_out == {"wide": (slow,)}
    return cast(ResumeState, resume), groups


@pytest.mark.parametrize("host", ["host", "elsewhere"])
@pytest.mark.parametrize("wide", [{"wide": 2}, {}], ids=["done", "removed"])
def test_a_slot_left_out_of_a_finished_dnn_does_not_end_the_others_round(
    drive: Drive, wide: dict[str, int], host: str
) -> None:
    resume, groups = left_inside_a_pass_of_small(drive)
    again = drive({**wide, "small": 9}, (4,), RATES, resume, host=host, alpha=0.0)
    assert groups_of(again.start()) == {"small": groups["small"]}
    assert again.ensemble.state.plan.last_pass is None, "the round has become one that only ends the pass"
    assert again.ensemble.forgotten == (), "nobody is left to whom it means anything"


@pytest.mark.parametrize(("host", "forgotten"), [("host", ()), ("elsewhere", ("other",))])
def test_a_slot_left_out_of_a_dnn_that_waits_does_not_end_the_others_round(
    drive: Drive, host: str, forgotten: tuple[str, ...]
) -> None:
    resume, groups = left_inside_a_pass_of_small(drive)
    resume = replace(resume, left_out={"other": (2,)})
    again = drive({"wide": 2, "small": 9, "other": 1}, (4,), RATES, resume, host=host, alpha=0.0)
    assert groups_of(again.start()) == {"small": groups["small"]}
    assert again.ensemble.state.plan.last_pass is None, "the round has become one that only ends the pass"
    assert again.ensemble.forgotten == forgotten


def test_on_other_hosts_a_round_continues_with_the_slot_that_was_to_leave_it(drive: Drive) -> None:
    """Stopped between the round with the slot and the round without it."""
    run = drive({"wide": 9, "small": 9}, (4,), RATES, alpha=0.5)
    first = groups_of(run.start())
    run.epoch("wide", "small", offers={"wide": first["wide"][0]})
    run.send(SuspendRequested("walltime"))
    run.leave("wide", "small")
    again = drive({"wide": 9, "small": 9}, (4,), RATES, run.ensemble.resume_state(), host="other", alpha=0.5)
    assert groups_of(again.start()) == first
    assert again.ensemble.forgotten == ("wide",)
    assert again.ensemble.resume_state().left_out == {}


def test_a_suspension_between_the_two_rounds_changes_nothing(drive: Drive) -> None:
    run = drive({"wide": 9, "small": 9}, (4,), RATES, alpha=0.5)
    first = groups_of(run.start())
    run.epoch("wide", "small", offers={"wide": first["wide"][0]})
    run.send(SuspendRequested("walltime"))
    assert run.leave("wide", "small")[-1] == Finish("suspended")
    again = drive({"wide": 9, "small": 9}, (4,), RATES, run.ensemble.resume_state(), alpha=0.5)
    assert groups_of(again.start()) == {**first, "wide": first["wide"][1:]}


def test_a_log_with_offers_replays_to_the_same_state(drive: Drive) -> None:
    run = drive({"wide": 9, "small": 2}, (2, 2), RATES, alpha=0.5)
    run.start()
    finish_pass(run, offers={"wide": run.ensemble.state.groups["wide"].slots[0]})
    finish_pass(run)
    assert replay(*run.ensemble.origin, run.ensemble.events).state == run.ensemble.state
    assert any(isinstance(e, EpochDone) and e.offered_slot is not None for e in run.ensemble.events)
    assert run.ensemble.snapshot()["dnns"]["wide"]["left_out"]


def test_an_offer_is_ignored_where_groups_are_not_to_shrink(drive: Drive) -> None:
    driver = drive({"a": 3}, (4,), regroup=False)
    driver.start()
    assert [type(told) for told in driver.epoch("a", offers={"a": 3})] == [NextPass]

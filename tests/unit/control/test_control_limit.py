"""A run that continues with fewer slots for a DNN (`schedule.max_slots_per_dnn`) than its last round had."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hpcbal.control.progress import ResumeState
from hpcbal.events.ensemble import GroupLeft, StartRound, SuspendRequested
from hpcbal.events.history import Position

Drive = Callable[..., Any]

WIDE_AND_SMALL = {"wide": [62.0, 120.0, 175.0, 230.0], "small": [180.0, 180.0, 180.0, 180.0]}


def left_inside_a_pass(drive: Drive, **settings: Any) -> ResumeState:
    """A run of `wide` on three slots and `small` on one, stopped when both were inside a pass."""
    driver = drive({"wide": 9, "small": 9}, (4,), WIDE_AND_SMALL, **settings)
    assert groups_of(driver.start()) == {"wide": 3, "small": 1}
    driver.epoch("wide", "small")
    driver.send(SuspendRequested("walltime"))
    for dnn_id in ("wide", "small"):
        driver.save(dnn_id, Position(1, 40))
        driver.send(GroupLeft(dnn_id))
    resume: ResumeState = driver.ensemble.resume_state()
    return resume


def groups_of(instructions: list[Any]) -> dict[str, int]:
    """Numbers of slots by DNN of the round that starts."""
    (start,) = [instruction for instruction in instructions if isinstance(instruction, StartRound)]
    return {group.dnn_id: len(group.slots) for group in start.plan.groups}


def test_a_round_with_more_slots_for_a_dnn_than_now_allowed_does_not_continue(drive: Drive) -> None:
    """DNNs inside the pass finish it, then a new flotilla is formed; no group is above the limit."""
    again = drive(
        {"wide": 9, "small": 9}, (4,), WIDE_AND_SMALL, left_inside_a_pass(drive), max_slots_per_dnn=2
    )
    assert again.ensemble.too_wide == ("wide",)
    seen: dict[str, int] = {}
    instructions = again.start()
    while len(seen) < 2:
        groups = groups_of(instructions)
        assert max(groups.values()) <= 2
        plan = again.ensemble.plan
        assert (plan.last_pass, {*plan.start.values()}) == (1, {Position(1, 40)})
        seen |= groups
        again.epoch(*groups)
        instructions = again.leave(*groups)
    assert max(groups_of(instructions).values()) <= 2
    assert again.ensemble.plan.last_pass is None


@pytest.mark.parametrize("limit", [3, None])
def test_a_round_within_the_present_limit_continues(drive: Drive, limit: int | None) -> None:
    again = drive(
        {"wide": 9, "small": 9}, (4,), WIDE_AND_SMALL, left_inside_a_pass(drive), max_slots_per_dnn=limit
    )
    assert again.ensemble.too_wide == ()
    assert groups_of(again.start()) == {"wide": 3, "small": 1}
    assert again.ensemble.plan.last_pass is None


def test_a_finished_dnn_or_one_with_a_slot_left_out_is_not_above_the_limit(drive: Drive) -> None:
    resume = left_inside_a_pass(drive)
    (wide,) = [group.slots for group in resume.interrupted.groups if group.dnn_id == "wide"]
    fewer = drive(
        {"wide": 9, "small": 9},
        (4,),
        WIDE_AND_SMALL,
        replace(resume, left_out={"wide": wide[:1]}),
        max_slots_per_dnn=2,
    )
    assert groups_of(fewer.start()) == {"wide": 2, "small": 1}
    assert fewer.ensemble.plan.last_pass is None
    removed = drive({"small": 9}, (4,), WIDE_AND_SMALL, resume, max_slots_per_dnn=2)
    assert (groups_of(removed.start()), removed.ensemble.too_wide) == ({"small": 1}, ())
    assert removed.ensemble.plan.last_pass is None


def test_a_dnn_kept_in_place_between_two_rounds_obeys_the_present_limit(drive: Drive) -> None:
    """`local` leaves DNNs in training in place, unless they have too many slots there."""
    resume = replace(left_inside_a_pass(drive, paradigm="local"), interrupted=None, kept={"wide": (0, 1, 2)})
    position = Position(1, 100)
    dnns = {dnn_id: replace(progress, position=position) for dnn_id, progress in resume.dnns.items()}
    again = drive(
        {"wide": 9, "small": 9},
        (4,),
        WIDE_AND_SMALL,
        replace(resume, dnns=dnns),
        max_slots_per_dnn=2,
        paradigm="local",
    )
    assert max(groups_of(again.start()).values()) <= 2


def test_a_round_with_more_slots_for_a_dnn_than_its_steps_have_samples_now_does_not_go_on(
    drive: Drive,
) -> None:
    """The batch size was lowered before the run was resumed."""
    resume = left_inside_a_pass(drive)
    again = drive({"wide": 9, "small": 9}, (4,), WIDE_AND_SMALL, resume, batch_sizes={"wide": 2})
    assert again.ensemble.too_wide == ("wide",)
    groups = groups_of(again.start())
    while "wide" not in groups:
        again.epoch(*groups)
        groups = groups_of(again.leave(*groups))
    assert groups["wide"] == 2

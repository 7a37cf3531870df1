"""The splitting machine: when a policy is asked, when its answers hold, and when it is no longer asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from hpcbal.control.splitting.machine import (
    Announced,
    Announcement,
    AskPolicy,
    Decided,
    GiveUp,
    Offer,
    PolicyFailed,
    SplitAction,
    SplitError,
    SplitEvent,
    SplitRules,
    Splitting,
    StepMeasured,
    replay,
    scaled_to_step,
    step_task,
)
from hpcbal.errors import PolicyError
from hpcbal.policies.batching import BATCHING, BatchTask, Cadence, Decision, Observation
from hpcbal.policies.batching.task import BatchState

TASK = BatchTask.uniform(100, 2)
BACKGROUND = SplitRules(Cadence.BACKGROUND, warm_up_steps=0)
UNTIL_SETTLED = SplitRules(Cadence.UNTIL_SETTLED, learns_from_any_split=True, warm_up_steps=0)


def machine_of(rules: SplitRules) -> Splitting:
    return Splitting(rules, BatchState(TASK, (50, 50)))


def measured(*shares: int) -> StepMeasured:
    return StepMeasured(shares, tuple(Observation(n, 1.0) for n in shares))


def decided(*sizes: int, remove: int | None = None) -> Decided:
    return Decided(Decision(BatchState(TASK, sizes), remove))


def feed(machine: Splitting, *events: SplitEvent) -> list[SplitAction]:
    """Handle all events; return the actions after the last one."""
    actions: list[SplitAction] = []
    for event in events:
        actions = machine.handle(event)
        machine.check_invariants()
    return actions


def follow(machine: Splitting) -> None:
    feed(machine, Announced(machine.announcement))


def kinds(actions: Sequence[SplitAction]) -> list[type[SplitAction]]:
    return [type(action) for action in actions]


def test_the_first_steps_of_a_round_are_not_shown() -> None:
    machine = machine_of(replace(BACKGROUND, warm_up_steps=2))
    for _ in range(2):
        assert feed(machine, measured(50, 50)) == []
    assert kinds(feed(machine, measured(50, 50))) == [AskPolicy]


def test_a_decision_holds_when_it_is_announced_not_before() -> None:
    machine = machine_of(BACKGROUND)
    feed(machine, measured(50, 50), decided(70, 30))
    assert machine.split(100) == (50, 50)
    follow(machine)
    assert machine.split(100) == (70, 30)
    assert machine.num_changes == 1


def test_one_decision_is_under_way_at_a_time() -> None:
    machine = machine_of(BACKGROUND)
    feed(machine, measured(50, 50))
    assert feed(machine, measured(50, 50)) == []
    feed(machine, decided(50, 50))
    assert kinds(feed(machine, measured(50, 50))) == [AskPolicy]


@pytest.mark.parametrize("from_any", [False, True])
def test_steps_under_older_shares_are_for_policies_that_can_use_them(from_any: bool) -> None:
    machine = machine_of(replace(BACKGROUND, learns_from_any_split=from_any))
    feed(machine, measured(50, 50), decided(70, 30))
    follow(machine)
    assert bool(feed(machine, measured(50, 50))) == from_any


def test_a_shorter_step_in_the_same_proportions_is_shown() -> None:
    machine = machine_of(BACKGROUND)
    feed(machine, measured(50, 50), decided(70, 30))
    assert kinds(feed(machine, measured(7, 3))) == [AskPolicy]


@pytest.mark.parametrize(
    ("cadence", "waits"),
    [(Cadence.BACKGROUND, False), (Cadence.UNTIL_SETTLED, True), (Cadence.EVERY_STEP, True)],
)
def test_a_group_that_is_formed_waits_for_decisions_as_its_policy_declares(
    cadence: Cadence, waits: bool
) -> None:
    assert machine_of(replace(BACKGROUND, cadence=cadence)).at_once == waits


def test_steps_wait_for_decisions_until_three_have_moved_little_and_again_after_a_large_move() -> None:
    machine, waits = machine_of(UNTIL_SETTLED), []
    for sizes in [(70, 30), (73, 27), (73, 27), (72, 28), (72, 28), (50, 50), (50, 50)]:
        shares = machine.split(100)
        feed(machine, measured(*shares), decided(*sizes))
        follow(machine)
        waits.append(machine.at_once)
    assert waits == [True, True, True, False, False, True, True]


def test_a_group_that_had_settled_plans_ahead_from_the_first_step_of_its_next_round() -> None:
    machine = machine_of(UNTIL_SETTLED)
    for _ in range(3):
        feed(machine, measured(50, 50), decided(50, 50))
        follow(machine)
    assert not Splitting(UNTIL_SETTLED, machine.state, machine.num_quiet).at_once


def test_an_offer_is_made_once_and_stands_until_it_is_withdrawn() -> None:
    machine = machine_of(BACKGROUND)
    assert feed(machine, measured(50, 50), decided(50, 50, remove=1)) == [Offer(1)]
    assert feed(machine, measured(50, 50), decided(50, 50, remove=1)) == []
    assert machine.remove == 1
    feed(machine, measured(50, 50), decided(50, 50))
    assert machine.remove is None
    assert feed(machine, measured(50, 50), decided(50, 50, remove=1)) == []


@pytest.mark.parametrize("cadence", [Cadence.BACKGROUND, Cadence.UNTIL_SETTLED, Cadence.EVERY_STEP])
def test_a_policy_that_fails_is_asked_no_more_and_no_step_waits(cadence: Cadence) -> None:
    machine = machine_of(replace(UNTIL_SETTLED, cadence=cadence))
    feed(machine, measured(50, 50), decided(70, 30, remove=0))
    assert feed(machine, measured(50, 50), PolicyFailed("singular")) == [GiveUp("singular")]
    follow(machine)
    assert (machine.split(100), machine.remove, machine.at_once) == ((70, 30), None, False)
    assert feed(machine, measured(70, 30)) == []


@pytest.mark.parametrize("sizes", [(70, 31), (99, 1, 0), (101, -1)])
def test_a_split_that_loses_samples_is_not_used(sizes: tuple[int, ...]) -> None:
    machine = machine_of(BACKGROUND)
    (action,) = feed(machine, measured(50, 50), decided(*sizes))
    assert isinstance(action, GiveUp)
    assert f"the policy split 100 samples over 2 ranks as {sizes}" in action.problem
    assert machine.announcement.batch_sizes == (50, 50)


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        (decided(50, 50), "the policy was not asked"),
        (measured(50, 25, 25), "reports of 3 ranks"),
        (Announced(Announcement((50, 51), at_once=False)), "allowed: a sum of 100"),
        (SplitEvent(), "allowed: Announced, Decided, PolicyFailed, StepMeasured"),
    ],
)
def test_events_that_cannot_happen_are_refused_with_what_led_there(event: SplitEvent, problem: str) -> None:
    machine = machine_of(BACKGROUND)
    feed(machine, measured(50, 50), decided(60, 40))
    with pytest.raises(SplitError, match=problem) as caught:
        machine.handle(event)
    assert "StepMeasured(shares=(50, 50)" in str(caught.value)
    machine.check_invariants()


def test_the_log_of_a_round_leads_to_the_same_state() -> None:
    machine = machine_of(UNTIL_SETTLED)
    for sizes in [(70, 30), (73, 27), (73, 27)]:
        feed(machine, measured(*machine.split(100)), decided(*sizes, remove=1))
        follow(machine)
    again = replay(UNTIL_SETTLED, BatchState(TASK, (50, 50)), machine.events)
    assert vars(again) == vars(machine)


def test_policies_that_never_decide_need_no_machine() -> None:
    policy: Any = BATCHING["even"]
    with pytest.raises(PolicyError, match="never decides"):
        SplitRules.of(policy)


@pytest.mark.parametrize(("max_samples", "expected"), [(None, (10, 10)), (7, (7, 7)), (2, (5, 5))])
def test_a_limit_below_an_even_share_is_raised_to_it(max_samples: int | None, expected: Any) -> None:
    assert step_task(10, 2, max_samples).maxima == expected


@pytest.mark.parametrize(("num_samples", "expected"), [(10, (8, 2)), (5, (4, 1)), (20, (16, 4)), (0, (0, 0))])
def test_steps_of_other_sizes_keep_the_proportions(num_samples: int, expected: tuple[int, ...]) -> None:
    assert scaled_to_step(num_samples, (8, 2)) == expected


def test_reports_that_cannot_be_shown_to_the_policy_end_balancing_though_it_was_not_asked() -> None:
    machine = machine_of(BACKGROUND)
    (action,) = machine.handle(PolicyFailed("cpu_share: got 2.0"))
    assert isinstance(action, GiveUp)
    assert machine.gave_up
    assert machine.handle(PolicyFailed("cpu_share: got 2.0")) == [], "it is reported once"
    machine.check_invariants()


@pytest.mark.parametrize("late", [decided(60, 40), PolicyFailed("singular")])
def test_an_answer_that_comes_after_balancing_has_ended_is_dropped(late: SplitEvent) -> None:
    machine = machine_of(BACKGROUND)
    feed(machine, measured(50, 50))
    assert isinstance(machine.handle(PolicyFailed("cpu_share: got 2.0"))[0], GiveUp)
    assert machine.handle(late) == []
    assert machine.state.batch_sizes == (50, 50)
    machine.check_invariants()

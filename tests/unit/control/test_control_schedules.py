"""Choices of schedules: which ones are compared, which one wins, and how the machine asks for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hpcbal.control.ensemble import replay
from hpcbal.control.paradigms import AUTO, PARADIGM_NAMES
from hpcbal.control.prediction import skip_passes
from hpcbal.control.progress import ScheduleSettings
from hpcbal.control.schedules import candidates, choose, first_to_try, next_to_try
from hpcbal.control.state import ControlError
from hpcbal.control.states import Phase
from hpcbal.events.ensemble import (
    ChooseSchedule,
    Delta,
    Finish,
    Instruction,
    RateMeasured,
    Schedule,
    ScheduleChosen,
    SchedulePrediction,
    StartGroup,
    StartRound,
    StopStream,
    SuspendRequested,
)
from hpcbal.policies.pruning.rules import Asha

Drive = Callable[..., Any]
OPEN: dict[str, Any] = {"paradigm": AUTO, "delta": None, "alpha": None}
ALONE = Schedule("independent")
WIDE = Schedule("global", Delta(relative=1.0), 0.8)
NARROW = Schedule("global", Delta(relative=0.1), 1.0)
THREE = {"a": [100.0, 190.0], "b": [98.0, 185.0], "c": [40.0, 78.0]}


def predicted(
    schedule: Schedule, remaining_s: float, rounds: int = 1, *, is_cut: bool = False
) -> SchedulePrediction:
    return SchedulePrediction(schedule, remaining_s, rounds, is_cut)


def answer(
    instructions: list[Instruction], schedule: Schedule, num_dnns: int | None = None
) -> ScheduleChosen:
    """Return the answer of a caller that prefers `schedule`."""
    (asked,) = (each for each in instructions if isinstance(each, ChooseSchedule))
    assert schedule in asked.candidates
    prediction = predicted(schedule, 5.0)
    return ScheduleChosen(schedule, (prediction,), asked.current, num_dnns=num_dnns, basis=asked.basis)


# ---- candidates -------------------------------------------------------------------------------


@pytest.mark.parametrize("paradigm", ["global", "local", "homogeneous", "independent"])
def test_what_is_given_leaves_nothing_to_choose(paradigm: str) -> None:
    assert len(candidates(ScheduleSettings(100, paradigm=paradigm))) == 1
    (only,) = candidates(ScheduleSettings(100, paradigm=paradigm, alpha=None))
    assert only.alpha in (0.8, None)


def test_only_what_is_left_open_differs_between_candidates() -> None:
    given_delta = candidates(ScheduleSettings(100, Delta(absolute=7.0), None, paradigm=AUTO))
    assert {schedule.delta for schedule in given_delta} == {Delta(absolute=7.0), None}
    given_paradigm = candidates(ScheduleSettings(100, None, 0.9, paradigm="local"))
    assert {schedule.paradigm for schedule in given_paradigm} == {"local"}
    everything = candidates(ScheduleSettings(100, None, None, paradigm=AUTO))
    assert {schedule.paradigm for schedule in everything} == set(PARADIGM_NAMES)
    assert Schedule("global", Delta(absolute=20.0), 0.8) in everything  # that of the paper
    assert len(set(everything)) == len(everything)


def test_beside_a_pruning_rule_auto_chooses_among_rounds() -> None:
    beside = ScheduleSettings(100, None, None, paradigm=AUTO, prune=Asha())
    assert {schedule.paradigm for schedule in candidates(beside)} == {"global", "local", "homogeneous"}
    assert {s.paradigm for s in candidates(replace(beside, paradigm="independent"))} == {"independent"}


def test_other_alphas_are_tried_for_the_best_schedule_only() -> None:
    everything = candidates(ScheduleSettings(100, None, None, paradigm=AUTO))
    first = first_to_try(everything, NARROW)
    assert first[0] == NARROW
    assert {schedule.alpha for schedule in first if schedule != NARROW} == {0.8, None}
    found = {schedule: predicted(schedule, 9.0) for schedule in first} | {WIDE: predicted(WIDE, 3.0)}
    assert {s.delta for s in next_to_try(everything, found)} == {WIDE.delta}
    assert {s.alpha for s in next_to_try(everything, found)} == {1.0, 0.5}
    assert next_to_try(everything, {ALONE: predicted(ALONE, 1.0)}) == ()


# ---- the choice -------------------------------------------------------------------------------


def test_the_shortest_prediction_wins_and_fewer_rounds_break_ties() -> None:
    assert choose([predicted(ALONE, 9.0), predicted(WIDE, 5.0)]).schedule == WIDE
    assert choose([predicted(ALONE, 5.0, 9), predicted(WIDE, 5.0, 2)]).schedule == WIDE
    assert choose([predicted(ALONE, 5.0), predicted(WIDE, 5.0)]).schedule == ALONE
    assert choose([predicted(ALONE, 5.0), predicted(WIDE, 4.0, is_cut=True)]).schedule == ALONE


def test_a_choice_is_kept_unless_another_gains_five_percent() -> None:
    close, far = (
        [predicted(WIDE, 100.0), predicted(ALONE, 96.0)],
        [predicted(WIDE, 100.0), predicted(ALONE, 95.0)],
    )
    assert choose(close, WIDE).schedule == WIDE
    assert choose(far, WIDE).schedule == ALONE
    assert choose(close, NARROW).schedule == ALONE  # the schedule before is no candidate any more
    assert choose(close, WIDE).previous == WIDE


def test_a_choice_names_the_best_of_each_paradigm() -> None:
    choice = choose([predicted(ALONE, 9.0), predicted(NARROW, 8.0), predicted(WIDE, 5.0)])
    assert choice.best_by_paradigm() == (predicted(WIDE, 5.0), predicted(ALONE, 9.0))


# ---- the state machine -------------------------------------------------------------------------


def test_the_machine_asks_before_each_round_and_forms_it_by_the_answer(drive: Drive) -> None:
    d = drive({"a": 1, "b": 2, "c": 3}, (2,), THREE, **OPEN)
    (asked,) = d.start()
    assert asked.current is None
    assert d.ensemble.state.phase is Phase.CHOOSING
    (started,) = d.send(answer([asked], NARROW))
    assert isinstance(started, StartRound)
    assert {group.dnn_id for group in started.plan.groups} == {"a", "b"}
    d.epoch("a", "b")  # a is done; alpha 1: the round ends
    instructions = d.leave("a", "b")
    assert isinstance(instructions[0], StopStream)
    assert instructions[1].current == NARROW
    (started,) = d.send(answer(instructions, WIDE))
    assert {group.dnn_id for group in started.plan.groups} == {"b", "c"}


def test_dnns_train_alone_to_the_end_once_that_is_chosen(drive: Drive) -> None:
    d = drive({"a": 1, "b": 1, "c": 2}, (2,), THREE, **OPEN)
    first = d.send(answer(d.start(), ALONE))
    assert [type(each) for each in first] == [StartGroup, StartGroup]
    name = first[0].plan.groups[0].dnn_id
    while d.ensemble.state.dnns[name].is_live:
        instructions = d.epoch(name)
        if d.ensemble.state.groups[name].leaving:
            instructions = d.leave(name)
    assert [type(each) for each in instructions] == [StartGroup]


def test_rounds_may_be_followed_by_training_alone(drive: Drive) -> None:
    d = drive({"a": 1, "b": 2, "c": 3}, (2,), THREE, **OPEN)
    d.send(answer(d.start(), NARROW))
    d.epoch("a", "b")
    alone = d.send(answer(d.leave("a", "b"), ALONE))
    assert {each.plan.groups[0].dnn_id for each in alone} == {"b", "c"}


def test_a_choice_holds_until_enough_of_its_dnns_are_over(drive: Drive) -> None:
    epochs = {"a": 1, "b": 2, "c": 3}
    d = drive(epochs, (2,), THREE, **OPEN)
    d.send(answer(d.start(), NARROW, num_dnns=3))
    d.epoch("a", "b")
    assert [type(each) for each in d.leave("a", "b")] == [StopStream, ChooseSchedule]
    d = drive(epochs, (2,), THREE, **OPEN)
    d.send(answer(d.start(), NARROW, num_dnns=2))  # as many as are left after the first round
    d.epoch("a", "b")
    assert [type(each) for each in d.leave("a", "b")] == [StopStream, StartRound]


@pytest.mark.parametrize(
    ("before", "now", "is_due"),
    [
        (None, 3, True),
        (3, 3, False),
        (3, 2, True),
        (20, 19, False),
        (20, 18, True),
        (200, 101, False),
        (200, 100, True),
        (100, 101, True),
    ],
)
def test_when_the_next_choice_is_due(before: int | None, now: int, is_due: bool) -> None:
    assert ScheduleChosen(WIDE, (), num_dnns=before).is_due(now) is is_due


def test_a_stop_that_comes_while_a_schedule_is_chosen_ends_the_run_at_once(drive: Drive) -> None:
    d = drive({"a": 1}, (2,), {"a": THREE["a"]}, **OPEN)
    asked = d.start()
    assert d.send(SuspendRequested("signal")) == [Finish("suspended")]
    assert d.send(answer(asked, WIDE)) == []  # it was on its way
    assert d.ensemble.resume_state().choice is None


def test_an_answer_that_was_not_asked_for_is_refused(drive: Drive) -> None:
    d = drive({"a": 2}, (2,), {"a": THREE["a"]}, **OPEN)
    asked = d.start()
    with pytest.raises(ControlError, match="one of the candidates"):
        d.ensemble.handle(ScheduleChosen(Schedule("local"), ()))
    d.send(answer(asked, WIDE))
    with pytest.raises(ControlError, match="in phase round"):
        d.ensemble.handle(answer(asked, WIDE))
    d.epoch("a")
    d.epoch("a")
    assert d.leave("a")[-1] == Finish("done")
    with pytest.raises(ControlError, match="in phase finished"):
        d.ensemble.handle(answer(asked, WIDE))


def test_a_replay_of_the_log_makes_the_same_choices(drive: Drive) -> None:
    d = drive({"a": 1, "b": 2, "c": 3}, (2,), THREE, **OPEN)
    d.send(answer(d.start(), NARROW))
    d.epoch("a", "b")
    d.send(answer(d.leave("a", "b"), WIDE))
    assert replay(*d.ensemble.origin, d.ensemble.events).state == d.ensemble.state


# ---- resuming ---------------------------------------------------------------------------------


def resumed(drive: Drive, before: Any, **settings: Any) -> Any:
    return drive(
        {"a": 1, "b": 2, "c": 3}, (2,), THREE, before.ensemble.resume_state(), **{**OPEN, **settings}
    )


def test_an_interrupted_round_continues_without_a_new_choice(drive: Drive) -> None:
    d = drive({"a": 1, "b": 2, "c": 3}, (2,), THREE, **OPEN)
    d.send(answer(d.start(), NARROW))
    again = resumed(drive, d)
    (started,) = again.start()
    assert isinstance(started, StartRound)
    assert started.plan.groups == d.ensemble.plan.groups
    assert again.ensemble.settings.alpha == 1.0


def test_a_resume_between_rounds_asks_with_the_schedule_of_before(drive: Drive) -> None:
    d = drive({"a": 1, "b": 2, "c": 3}, (2,), THREE, **OPEN)
    d.send(answer(d.start(), NARROW))
    d.epoch("a", "b")
    d.leave("a", "b")
    (asked,) = resumed(drive, d).start()
    assert asked.current == NARROW


def test_a_schedule_that_is_given_now_replaces_the_choice(drive: Drive) -> None:
    d = drive({"a": 1, "b": 2, "c": 3}, (2,), THREE, **OPEN)
    d.send(answer(d.start(), ALONE))
    again = resumed(drive, d, paradigm="global", delta=Delta(relative=0.1), alpha=0.8)
    assert isinstance(again.start()[0], StartRound)


def test_a_run_that_began_with_a_given_schedule_asks_first(drive: Drive) -> None:
    d = drive({"a": 1, "b": 2, "c": 3}, (2,), THREE)
    d.start()
    again = resumed(drive, d)
    (asked,) = again.start()
    assert asked.current is None
    (started,) = again.send(answer([asked], WIDE))
    assert started.plan.groups == d.ensemble.plan.groups  # the interrupted round continues


def test_training_alone_continues_on_like_nodes_and_is_chosen_again_on_others(drive: Drive) -> None:
    d = drive({"a": 1, "b": 2, "c": 3}, (2,), THREE, **OPEN)
    d.send(answer(d.start(), ALONE))
    assert {type(each) for each in resumed(drive, d).start()} == {StartGroup}
    before = d.ensemble.resume_state()
    wider = drive({"a": 1, "b": 2, "c": 3}, (4,), None, before, **OPEN)
    assert wider.start()[0].current is None


FOUR = {**THREE, "d": [90.0, 170.0]}


@pytest.mark.parametrize("chosen", [NARROW, ALONE])
@pytest.mark.parametrize(
    ("epochs", "slots", "settings"),
    [
        ({"a": 2, "b": 2, "c": 3, "d": 3}, 2, {}),
        ({"a": 2, "b": 2}, 2, {}),
        ({"a": 2, "b": 2, "c": 4}, 2, {}),
        ({"a": 2, "b": 2, "c": 3}, 2, {"max_slots_per_dnn": 1}),
        ({"a": 2, "b": 2, "c": 3}, 2, {"alpha": 0.5}),
        ({"a": 2, "b": 2, "c": 3}, 4, {}),
    ],
    ids=["one more DNN", "one less", "more epochs", "a limit", "a given alpha", "more slots"],
)
def test_a_choice_made_for_something_else_is_made_again(
    drive: Drive, chosen: Schedule, epochs: dict[str, int], slots: int, settings: dict[str, Any]
) -> None:
    """Even if rounds were formed by it meanwhile, and as many DNNs are left as it was made for."""
    rates = {name: [*row, 3 * row[0], 4 * row[0]] for name, row in FOUR.items()}
    d = drive({"a": 2, "b": 2, "c": 3}, (2,), rates, **OPEN)
    d.send(answer(d.start(), chosen, num_dnns=3))
    before = d.ensemble.resume_state()
    same = drive({"a": 2, "b": 2, "c": 3}, (2,), rates, before, **OPEN)
    assert not any(isinstance(each, ChooseSchedule) for each in same.start())
    other = drive(epochs, (slots,), rates, before, **(OPEN | settings))
    assert isinstance(other.start()[0], ChooseSchedule)


def test_rates_that_a_choice_needs_are_measured_first(drive: Drive) -> None:
    d = drive({"a": 1}, (2,), {}, **OPEN, profile=True)
    assert type(d.start()[0]).__name__ == "StartProfiling"


def test_a_choice_waits_for_the_rounds_that_measure(drive: Drive) -> None:
    """With one slot per DNN, rates are measured in training: a round of one pass comes before the choice."""
    d = drive(dict.fromkeys("ab", 5), (2,), {}, **OPEN, profile=True, max_slots_per_dnn=1)
    (first,) = d.start()
    assert isinstance(first, StartRound)
    assert first.plan.last_pass == 0
    for name in "ab":
        assert d.send(RateMeasured(name, 1, 100.0)) == []
    d.epoch("a", "b")
    assert any(isinstance(each, ChooseSchedule) for each in d.leave("a", "b"))


# ---- idle slots -------------------------------------------------------------------------------


def idle(d: Any) -> Any:
    found = d.ensemble.idle_slots()
    assert found is not None
    return found


def test_a_delta_that_keeps_dnns_waiting_is_named_with_the_one_that_would_not(drive: Drive) -> None:
    d = drive({"a": 1, "b": 2, "c": 3}, (8,), THREE, max_slots_per_dnn=2, alpha=1.0)
    d.start()
    found = idle(d)
    assert (found.num_idle, found.waiting) == (4, ("c",))
    assert found.why == "c: no rate within delta (10%) of 100 samples/s, the rate of a"
    assert "schedule.delta: 22% would let c join" in found.change
    wider = drive({"a": 1, "b": 2, "c": 3}, (8,), THREE, max_slots_per_dnn=2, delta=Delta(relative=0.22))
    wider.start()
    assert wider.ensemble.idle_slots() is None


def test_an_alpha_that_keeps_a_round_going_is_named(drive: Drive) -> None:
    d = drive({"a": 1, "b": 2, "c": 3}, (2,), THREE, alpha=0.5)
    d.start()
    assert d.ensemble.idle_slots() is None  # c waits, but all slots are busy
    d.epoch("a", "b")
    assert "alpha (0.5) of its 2 slots" in idle(d).why


def test_a_homogeneous_round_that_waits_for_its_last_dnn_is_named(drive: Drive) -> None:
    d = drive({"a": 1, "b": 2, "c": 3}, (2,), THREE, paradigm="homogeneous")
    (started,) = d.start()
    names = [group.dnn_id for group in started.plan.groups]
    d.epoch(*names)
    assert "until all of its DNNs are done" in idle(d).why


def test_nothing_is_idle_while_no_dnn_waits(drive: Drive) -> None:
    d = drive({"a": 1}, (8,), {"a": [100.0] * 8})
    d.start()
    assert d.ensemble.idle_slots() is None


# ---- skipped passes ---------------------------------------------------------------------------


def test_skipped_passes_are_in_the_history_and_the_rest_is_as_before(drive: Drive) -> None:
    d = drive({"a": 5, "b": 6}, (2,), {"a": [100.0], "b": [100.0]}, delta=Delta(relative=0.5))
    d.start()
    skip_passes(d.ensemble, ("a", "b"), 3)
    d.ensemble.check_invariants()
    assert [record.pass_index for record in d.ensemble.state.dnns["a"].history] == [0, 1, 2]
    d.epoch("a", "b")
    (leaving,) = d.epoch("a", "b")[:1]
    assert (leaving.dnn_id, leaving.reason) == ("a", "converged")


@pytest.mark.parametrize(("names", "number"), [(("a", "b"), 5), (("a",), 1)])
def test_passes_with_a_decision_in_them_cannot_be_skipped(
    drive: Drive, names: tuple[str, ...], number: int
) -> None:
    d = drive({"a": 5, "b": 6}, (2,), {"a": [100.0], "b": [100.0]}, delta=Delta(relative=0.5))
    d.start()
    with pytest.raises(ControlError, match="cannot be skipped"):
        skip_passes(d.ensemble, names, number)

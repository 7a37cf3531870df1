"""Stories of ensembles: rounds, convergence, failures, suspension, resume."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from hpcbal.cluster.layout import Cluster
from hpcbal.control.ensemble import Ensemble, replay
from hpcbal.control.progress import DnnProgress, ResumeState, ScheduleSettings
from hpcbal.control.state import ControlError
from hpcbal.control.states import DnnState
from hpcbal.errors import ClusterError, InputError
from hpcbal.events.ensemble import (
    CheckpointWritten,
    DnnFailed,
    EpochDone,
    Event,
    Finish,
    GroupLeft,
    LeaveRound,
    NextPass,
    PreprocessingMeasured,
    Started,
    StartRound,
    StopStream,
    SuspendGroups,
    SuspendRequested,
)
from hpcbal.events.history import EpochRecord, Position
from hpcbal.events.members import DnnSpec, StopRule
from hpcbal.policies.rates import RateTable

Drive = Callable[..., Any]
END = 100
CONVERGED = "1 of at most 1 epochs"


def flotilla_of(instructions: list[Any]) -> dict[str, int]:
    (start,) = [i for i in instructions if isinstance(i, StartRound)]
    return {group.dnn_id: len(group.slots) for group in start.plan.groups}


# ---- a round and its end -------------------------------------------------------------------------


def test_two_dnns_train_to_their_end(drive: Drive) -> None:
    driver = drive({"a": 2, "b": 2})
    assert flotilla_of(driver.start()) == {"a": 2, "b": 2}
    assert driver.epoch("a") == []
    assert driver.epoch("b") == [NextPass(("a", "b"), 1, ("a", "b"))]
    detail = "2 of at most 2 epochs"
    assert driver.epoch("b", "a") == [
        LeaveRound("a", "converged", detail),
        LeaveRound("b", "converged", detail),
    ]
    assert driver.leave("a") == []
    assert driver.state_of("a") == "done"
    assert driver.leave("b") == [StopStream(0), Finish("done")]
    assert driver.ensemble.finished
    assert driver.ensemble.outcome == "done"


def test_checkpoints_between_passes_can_be_switched_off(drive: Drive) -> None:
    driver = drive({"a": 2}, checkpoint_every_pass=False)
    driver.start()
    assert driver.epoch("a") == [NextPass(("a",), 1, ())]


def test_other_dnns_continue_while_enough_slots_stay_busy(drive: Drive) -> None:
    driver = drive({"a": 1, "b": 3, "c": 3, "d": 3}, alpha=0.75)
    driver.start()
    instructions = driver.epoch("a", "b", "c", "d")
    assert instructions == [
        LeaveRound("a", "converged", CONVERGED),
        NextPass(("b", "c", "d"), 1, ("b", "c", "d")),
    ]
    assert driver.leave("a") == []  # the others train on
    assert driver.epoch("b", "c", "d") == [NextPass(("b", "c", "d"), 2, ("b", "c", "d"))]


def test_all_leave_when_too_few_slots_stay_busy(drive: Drive) -> None:
    driver = drive({"a": 1, "b": 3, "c": 3, "d": 3}, alpha=0.8)
    driver.start()
    instructions = driver.epoch("a", "b", "c", "d")
    assert instructions == [LeaveRound("a", "converged", CONVERGED)] + [
        LeaveRound(d, "regroup") for d in "bcd"
    ]
    instructions = driver.leave("a", "b", "c", "d")
    assert instructions[0] == StopStream(0)
    assert flotilla_of(instructions) == {"b": 2, "c": 1, "d": 1}
    assert instructions[1].plan.first_pass == 1
    assert instructions[1].plan.index == 1
    assert instructions[1].plan.epochs == {"b": 1, "c": 1, "d": 1}


def test_dnns_with_other_speeds_wait_for_their_flotilla(drive: Drive) -> None:
    driver = drive({"slow": 1, "fast": 1}, (1,), rates={"slow": [10.0], "fast": [100.0]})
    assert flotilla_of(driver.start()) == {"fast": 1}
    assert driver.state_of("slow") == "waiting"
    driver.epoch("fast")
    assert flotilla_of(driver.leave("fast")) == {"slow": 1}


def test_a_round_continues_if_regrouping_would_change_nothing(drive: Drive) -> None:
    driver = drive({"a": 1, "b": 3}, (4,), max_slots_per_dnn=2)
    assert flotilla_of(driver.start()) == {"a": 2, "b": 2}
    assert driver.epoch("a", "b")[1:] == [NextPass(("b",), 1, ("b",))]


def test_the_measured_preprocessing_rate_counts_in_the_next_round(drive: Drive) -> None:
    driver = drive({"a": 1, "b": 2}, (2,), max_preprocessors=8)
    (instruction,) = driver.start()
    assert instruction.plan.num_preprocessors == 8
    assert driver.send(PreprocessingMeasured(50.0)) == []
    driver.epoch("a", "b")
    assert driver.leave("a", "b")[1].plan.num_preprocessors == 4  # for 200 samples/s


def test_no_dnns_at_all_are_done_at_once(drive: Drive) -> None:
    assert drive({}).start() == [Finish("done")]


def test_an_allocation_without_slots_is_refused(drive: Drive) -> None:
    with pytest.raises(ClusterError, match="no slot"):
        Ensemble([], Cluster(()), ScheduleSettings(num_positions=END), RateTable({}, 1))


def test_two_dnns_with_the_same_name_are_refused() -> None:
    specs = [DnnSpec("a", 8, StopRule()), DnnSpec("a", 8, StopRule())]
    with pytest.raises(ControlError, match="DNNs with the same name: a"):
        Ensemble(specs, Cluster.uniform(1, 1), ScheduleSettings(num_positions=END), RateTable({}, 1))


# ---- checkpoints ---------------------------------------------------------------------------------


def test_a_late_checkpoint_of_an_earlier_epoch_makes_nothing_done(drive: Drive) -> None:
    driver = drive({"a": 2})
    driver.start()
    driver.epoch("a")
    driver.epoch("a")
    assert driver.send(CheckpointWritten("a", 1, Position(0, END))) == []
    assert driver.state_of("a") == "leaving"
    driver.send(CheckpointWritten("a", 2, Position(1, END)))
    assert driver.state_of("a") == "done"


def test_a_group_must_not_leave_before_its_checkpoint(drive: Drive) -> None:
    driver = drive({"a": 1})
    driver.start()
    driver.epoch("a")
    with pytest.raises(ControlError, match="CheckpointWritten of epoch 1 before GroupLeft"):
        driver.send(GroupLeft("a"))


def test_a_converged_dnn_whose_checkpoint_fails_has_failed(drive: Drive) -> None:
    driver = drive({"a": 1})
    driver.start()
    driver.epoch("a")
    driver.send(DnnFailed("a", "checkpoint", "disk full"))
    assert driver.send(GroupLeft("a")) == [StopStream(0), Finish("failed-dnns")]
    assert driver.ensemble.snapshot()["dnns"]["a"]["cause"] == "checkpoint"


def test_a_done_dnn_stays_done_when_its_group_fails_afterwards(drive: Drive) -> None:
    driver = drive({"a": 1})
    driver.start()
    driver.epoch("a")
    driver.save("a")
    assert driver.send(DnnFailed("a", "error", "while freeing memory")) == []
    assert driver.send(GroupLeft("a")) == [StopStream(0), Finish("done")]


# ---- failures ------------------------------------------------------------------------------------


def test_no_group_waits_for_a_failed_dnn(drive: Drive) -> None:
    driver = drive({"a": 2, "b": 2}, alpha=0.5)
    driver.start()
    driver.epoch("a")
    assert driver.send(DnnFailed("b", "nan", "loss is NaN", 3)) == [NextPass(("a",), 1, ("a",))]
    assert driver.send(EpochDone("b", 0, {}, 1.0)) == []  # was under way
    assert driver.send(CheckpointWritten("b", 0, Position(0))) == []
    assert driver.send(GroupLeft("b")) == []
    driver.epoch("a")
    assert driver.leave("a") == [StopStream(0), Finish("failed-dnns")]


def test_after_a_failure_inside_a_pass_the_others_finish_the_pass(drive: Drive) -> None:
    driver = drive({"a": 2, "b": 2})
    driver.start()
    assert driver.send(DnnFailed("b", "error", "bug")) == []
    driver.send(GroupLeft("b"))
    assert driver.epoch("a") == [LeaveRound("a", "regroup")]
    assert flotilla_of(driver.leave("a")) == {"a": 4}


def test_a_round_in_which_all_fail_ends(drive: Drive) -> None:
    driver = drive({"a": 2, "b": 2}, (1,))
    assert flotilla_of(driver.start()) == {"a": 1}
    assert driver.send(DnnFailed("a", "error", "bug")) == []
    assert flotilla_of(driver.send(GroupLeft("a"))) == {"b": 1}
    driver.send(DnnFailed("b", "error", "bug"))
    assert driver.send(GroupLeft("b")) == [StopStream(1), Finish("failed-dnns")]


def test_a_waiting_dnn_can_fail(drive: Drive) -> None:
    driver = drive({"a": 1, "b": 1}, (1,))
    driver.start()
    assert driver.send(DnnFailed("b", "data", "missing")) == []
    driver.epoch("a")
    assert driver.leave("a") == [StopStream(0), Finish("failed-dnns")]


def test_a_missing_metric_is_an_error_and_changes_nothing(drive: Drive) -> None:
    driver = drive({"a": StopRule(monitor="val_f1", max_epochs=2)})
    driver.start()
    with pytest.raises(InputError, match="val_f1"):
        driver.epoch("a")
    assert driver.ensemble.state.dnns["a"].epochs == 0


# ---- suspension and resume -----------------------------------------------------------------------


def test_suspension_stops_all_groups_where_they_are(drive: Drive) -> None:
    driver = drive({"a": 3, "b": 3})
    driver.start()
    driver.epoch("a")
    assert driver.send(SuspendRequested("SIGTERM")) == [SuspendGroups(("a", "b"))]
    assert driver.send(SuspendRequested("again")) == []
    driver.save("a")
    driver.send(GroupLeft("a"))
    driver.save("b", Position(0, 40))
    assert driver.send(GroupLeft("b")) == [StopStream(0, suspended=True), Finish("suspended")]
    assert driver.send(SuspendRequested("once more")) == []
    left = driver.ensemble.resume_state()
    assert left.dnns["b"].position == Position(0, 40)
    assert left.interrupted == driver.ensemble.plan

    again = drive({"a": 3, "b": 3}, resume=left)
    (instruction,) = again.start()
    assert instruction.plan.start == {"a": Position(0, END), "b": Position(0, 40)}
    assert (instruction.plan.first_pass, instruction.plan.index, instruction.plan.num_slots) == (0, 1, 4)
    assert again.epoch("b") == [NextPass(("a", "b"), 1, ("a", "b"))]


def test_an_epoch_reported_just_after_the_request_counts(drive: Drive) -> None:
    driver = drive({"a": 1})
    driver.start()
    driver.send(SuspendRequested("SIGTERM"))
    assert driver.epoch("a") == []
    driver.save("a")
    assert (driver.state_of("a"), driver.ensemble.state.dnns["a"].detail) == ("done", "1 of at most 1 epochs")
    assert driver.send(GroupLeft("a")) == [StopStream(0, suspended=True), Finish("done")]


def test_a_dnn_that_waits_for_a_decision_when_the_run_stops_has_converged(drive: Drive) -> None:
    driver = drive({"a": 1, "b": 2})
    driver.start()
    driver.epoch("a")
    assert driver.send(SuspendRequested("SIGINT")) == [SuspendGroups(("a", "b"))]
    driver.leave("a")
    driver.save("b", Position(0, 40))
    assert driver.send(GroupLeft("b"))[-1] == Finish("suspended")
    assert (driver.state_of("a"), driver.state_of("b")) == ("done", "suspended")
    again = drive({"a": 1, "b": 2}, resume=driver.ensemble.resume_state())
    (instruction,) = again.start()
    assert instruction.plan.start == {"b": Position(0, 40)}


def test_groups_that_are_leaving_are_not_asked_again(drive: Drive) -> None:
    driver = drive({"a": 1, "b": 2}, alpha=0.5)
    driver.start()
    driver.epoch("a", "b")
    assert driver.send(SuspendRequested("walltime")) == [SuspendGroups(("b",))]
    driver.leave("a")
    assert driver.state_of("a") == "done"
    driver.save("b", Position(1, 1))
    assert driver.send(GroupLeft("b"))[-1] == Finish("suspended")


def test_a_suspension_after_everything_is_done_ends_as_done(drive: Drive) -> None:
    driver = drive({"a": 1})
    driver.start()
    driver.epoch("a")
    assert driver.send(SuspendRequested("walltime")) == []
    assert driver.leave("a") == [StopStream(0, suspended=True), Finish("done")]


def test_a_suspension_before_the_start_starts_nothing(drive: Drive) -> None:
    driver = drive({"a": 1})
    assert driver.send(SuspendRequested("walltime")) == []
    assert driver.start() == [Finish("suspended")]


def record(epoch: int, pass_index: int, value: float = 0.5) -> EpochRecord:
    return EpochRecord(epoch, pass_index, {"val_accuracy": value})


def trained(
    *passes: int, position: Position | None = None, state: DnnState = DnnState.RUNNING
) -> DnnProgress:
    history = tuple(record(i, p) for i, p in enumerate(passes, start=1))
    cause = "nan" if state is DnnState.FAILED else ""
    return DnnProgress(state, len(history), history, position, cause, "detail")


def test_done_and_failed_dnns_stay_so_and_others_continue(drive: Drive) -> None:
    resume = ResumeState(
        {
            "a": trained(0, state=DnnState.DONE),
            "b": trained(0, state=DnnState.FAILED),
            "c": trained(0, 3),
        },
        next_pass=9,
        next_round_index=4,
    )
    driver = drive({"a": 9, "b": 9, "c": 9, "new": 9}, resume=resume)
    (instruction,) = driver.start()
    assert {group.dnn_id for group in instruction.plan.groups} == {"c", "new"}
    assert (instruction.plan.first_pass, instruction.plan.index) == (9, 4)
    assert instruction.plan.epochs == {"c": 2, "new": 0}
    assert (driver.state_of("a"), driver.state_of("b")) == ("done", "failed")


def test_a_whole_checkpoint_that_meets_the_rule_makes_a_dnn_done(drive: Drive) -> None:
    resume = ResumeState({"a": trained(0, 1, position=Position(1, END))})
    driver = drive({"a": 2}, resume=resume)
    assert driver.start() == [Finish("done")]
    assert driver.ensemble.snapshot()["dnns"]["a"]["detail"] == "2 of at most 2 epochs"


def test_passes_seen_in_checkpoints_are_not_used_again(drive: Drive) -> None:
    resume = ResumeState({"a": trained(0, 7)})
    (instruction,) = drive({"a": 9}, resume=resume).start()
    assert instruction.plan.first_pass == 8


def interrupted_round(drive: Drive) -> Any:
    driver = drive({"a": 9, "b": 9, "c": 9, "d": 9})
    (instruction,) = driver.start()
    return instruction.plan


def test_after_a_crash_dnns_behind_catch_up_while_the_others_wait(drive: Drive) -> None:
    dnns = {
        "a": trained(0, 1, position=Position(1, END)),
        "b": trained(0, position=Position(0, END)),
        "c": DnnProgress(),
        "d": trained(0, 1, position=Position(2, 30)),
    }
    resume = ResumeState(dnns, 3, 1, interrupted_round(drive))
    driver = drive({"a": 9, "b": 9, "c": 9, "d": 9}, resume=resume)
    (instruction,) = driver.start()
    assert instruction.plan.first_pass == 0
    assert instruction.plan.start == {
        "a": Position(1, END),
        "b": Position(0, END),
        "c": Position(0),
        "d": Position(2, 30),
    }
    assert driver.epoch("c") == [NextPass(("b", "c"), 1, ("b", "c"))]
    assert driver.epoch("b", "c") == [NextPass(("a", "b", "c"), 2, ("a", "b", "c"))]
    assert driver.epoch("d", "a", "b", "c")[-1].pass_index == 3


def test_dnns_ahead_continue_when_all_those_behind_fail(drive: Drive) -> None:
    dnns = {"a": trained(0, 1, 2, position=Position(2, END)), "b": DnnProgress()}
    resume = ResumeState(dnns, 5, 1, interrupted_round(drive))
    driver = drive({"a": 9, "b": 9}, resume=resume)
    driver.start()
    assert driver.send(DnnFailed("b", "error", "bug")) == [NextPass(("a",), 3, ("a",))]


def test_on_another_allocation_only_stopped_passes_are_caught_up(drive: Drive) -> None:
    dnns = {
        "a": trained(0, position=Position(1, 30)),
        "b": trained(0, position=Position(1, 60)),
        "c": trained(0, 1, position=Position(1, END)),
    }
    resume = ResumeState(dnns, 2, 1, interrupted_round(drive), Cluster.uniform(1, 4))
    driver = drive({"a": 9, "b": 9, "c": 9}, (1,), resume=resume)
    (instruction,) = driver.start()
    assert instruction.plan.start == {"a": Position(1, 30)}
    assert (instruction.plan.first_pass, instruction.plan.last_pass) == (1, 1)
    assert driver.epoch("a") == [LeaveRound("a", "regroup")]
    instructions = driver.leave("a")
    assert instructions[1].plan.start == {"b": Position(1, 60)}
    driver.epoch("b")
    instructions = driver.leave("b")
    assert (instructions[1].plan.first_pass, instructions[1].plan.last_pass) == (2, None)


def test_a_checkpoint_from_inside_an_earlier_pass_is_caught_up_after_the_round(drive: Drive) -> None:
    plan = interrupted_round(drive)
    dnns = {"a": trained(0, position=Position(0, END)), "b": trained(position=Position(0, 20))}
    plan = type(plan)(
        1, plan.groups[:2], 3, {"a": Position(3), "b": Position(3)}, plan.epochs, 1, {"a": 1.0, "b": 1.0}, 4
    )
    driver = drive({"a": 2, "b": 2}, resume=ResumeState(dnns, 4, 2, plan))
    (instruction,) = driver.start()
    assert instruction.plan.start == {"a": Position(3)}
    driver.epoch("a")
    instructions = driver.leave("a")
    assert instructions[1].plan.start == {"b": Position(0, 20)}
    assert instructions[1].plan.last_pass == 0


def test_a_history_that_does_not_match_its_epochs_is_refused(drive: Drive) -> None:
    with pytest.raises(ControlError, match="a has completed 2 epochs, but its history holds 0"):
        drive({"a": 3}, resume=ResumeState({"a": DnnProgress(epochs=2)}))


# ---- illegal events ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (Started(), "a second Started"),
        (EpochDone("a", 1, {"val_accuracy": 0.1}, 1.0), "it trains pass 0"),
        (EpochDone("b", 0, {"val_accuracy": 0.1}, 1.0), "none is trained"),
        (GroupLeft("a"), "a group that was asked to leave"),
        (GroupLeft("b"), "a DNN that has a group"),
        (CheckpointWritten("a", 1, Position(0)), "of epoch <= 0"),
        (CheckpointWritten("b", 0, Position(0)), "a DNN in the round"),
        (DnnFailed("nobody", "error", ""), "no DNN 'nobody'"),
        (Event(), "an event of type Event, allowed: CheckpointWritten, DnnAdded, DnnFailed"),
    ],
)
def test_errors_for_illegal_events_say_what_is_allowed(drive: Drive, event: Event, message: str) -> None:
    driver = drive({"a": 3, "b": 3}, (1,))
    driver.start()
    with pytest.raises(ControlError, match=message) as caught:
        driver.send(event)
    assert caught.value.events == (Started(), event)
    driver.ensemble.check_invariants()


def test_events_before_started_are_failures_only(drive: Drive) -> None:
    with pytest.raises(ControlError, match="before Started"):
        drive({"a": 1}).send(GroupLeft("a"))
    driver = drive({"a": 1, "b": 1})
    assert driver.send(DnnFailed("a", "error", "too large")) == []
    driver.start()
    assert driver.ensemble.state.live_ids() == ["b"]


def test_nothing_may_follow_finish(drive: Drive) -> None:
    driver = drive({})
    driver.start()
    with pytest.raises(ControlError, match=r"after Finish\('done'\)"):
        driver.send(PreprocessingMeasured(1.0))


# ---- log, snapshot -------------------------------------------------------------------------------


def test_a_long_run_keeps_a_bounded_log_that_still_replays(drive: Drive) -> None:
    driver = drive({f"d{i}": 3 for i in range(5)}, (1,), max_events=20)
    driver.start()
    while not driver.ensemble.finished:
        (name,) = driver.ensemble.state.groups
        instructions = driver.epoch(name)
        if isinstance(instructions[0], LeaveRound):
            driver.leave(name)
        assert len(driver.ensemble.events) <= 20
        assert replay(*driver.ensemble.origin, driver.ensemble.events).state == driver.ensemble.state
    assert driver.ensemble.origin[4].next_round_index > 0
    assert driver.ensemble.log.num_dropped == 0


def test_replaying_a_failed_run_fails_in_the_same_way(drive: Drive) -> None:
    driver = drive({"a": 3})
    driver.start()
    with pytest.raises(ControlError) as first:
        driver.send(GroupLeft("a"))
    with pytest.raises(ControlError) as second:
        replay(*driver.ensemble.origin, first.value.events)
    assert str(second.value) == str(first.value)


def test_the_snapshot_is_strict_json(drive: Drive) -> None:
    driver = drive({"a": 3, "b": 1, "c": 3}, (4,), rates={"a": [10.0], "b": [10.0], "c": [900.0]}, alpha=0.1)
    assert json.loads(json.dumps(driver.ensemble.snapshot(), allow_nan=False))["phase"] == "new"
    driver.start()
    driver.epoch("c", val_accuracy=float("nan"))
    shown = json.loads(json.dumps(driver.ensemble.snapshot(), allow_nan=False))
    assert (shown["phase"], shown["round"], shown["pass_index"], shown["next_pass"]) == ("round", 0, 1, 2)
    assert (shown["num_live"], shown["num_done"], shown["num_failed"]) == (3, 0, 0)
    assert shown["dnns"]["c"] == {
        "state": "running",
        "epochs": 1,
        "max_epochs": 3,
        "metrics": {"val_accuracy": None},
        "monitor": "val_accuracy",
        "best": None,
        "best_epoch": None,
        "slots": list(range(driver.ensemble.plan.num_slots)),
        "left_out": [],
        "leaving": None,
        "cause": None,
        "detail": None,
    }
    assert shown["dnns"]["a"]["slots"] == []


def test_broken_invariants_are_reported(drive: Drive) -> None:
    driver = drive({"a": 3, "b": 3})
    driver.start()
    groups = driver.ensemble.state.groups
    groups["a"].slots = groups["b"].slots
    with pytest.raises(ControlError, match=r"internal error: slot \d is held by a and b"):
        driver.ensemble.check_invariants()

"""Rounds of groups of one and two ranks in one process: passes, reports, checkpoints, stops and failures."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpcbal.events.ensemble import CheckpointWritten, DnnFailed, EpochDone, GroupLeft, GroupPlan, RateMeasured
from hpcbal.events.history import Position
from hpcbal.runtime.group.replicas import SUMS_NAME
from hpcbal.runtime.wire.protocol import (
    Happened,
    Leave,
    PreprocessorReport,
    Proceed,
    Suspend,
)

ALONE, TOGETHER = GroupPlan("a", (0,)), GroupPlan("a", (1, 0))
"""The master of the group of two is the trainer of slot 1."""

HOOKED = [{"name": "a", "model": "in_process_toys:toy", "args": {"hook": "act"}, "batch_size": 8}]
PLAIN = [{**HOOKED[0], "args": {}}]
FloorMaker = Callable[..., Any]


def group_of(num_slots: int) -> GroupPlan:
    return ALONE if num_slots == 1 else TOGETHER


def train(floor: Any, group: GroupPlan, passes: int, *, serial: int = 1, **plan: Any) -> list[EpochDone]:
    """A round of so many passes that ends with its checkpoint; the epochs' reports."""
    floor.open(serial, (group,), floor.plan_of(group, **plan))
    return go_on(floor, group, passes, serial)


def go_on(floor: Any, group: GroupPlan, passes: int, serial: int) -> list[EpochDone]:
    done: list[EpochDone] = []
    while len(done) < passes:
        event = floor.event()
        assert isinstance(event, EpochDone), event
        done.append(event)
        if len(done) < passes:
            floor.order(Proceed(serial, event.pass_index + 1, checkpoint=False), *group.slots)
    floor.order(Leave(serial, "converged"), *group.slots)
    written = floor.event()
    assert isinstance(written, CheckpointWritten), written
    assert written.position == Position(done[-1].pass_index, floor.num_positions)
    assert floor.event() == GroupLeft("a")
    return done


def assert_same(mine: Any, theirs: Any) -> None:
    """Two checkpoints hold the same weights, optimizer and history."""
    assert mine.arrays.keys() == theirs.arrays.keys()
    for name, array in theirs.arrays.items():
        np.testing.assert_allclose(mine.arrays[name], array, rtol=1e-12, atol=1e-12, err_msg=name)
    assert [(r.epoch, r.pass_index) for r in mine.history] == [
        (r.epoch, r.pass_index) for r in theirs.history
    ]
    for own, other in zip(mine.history, theirs.history, strict=True):
        assert dict(own.metrics) == pytest.approx(dict(other.metrics), rel=1e-12)


@pytest.fixture
def undisturbed(floor: FloorMaker) -> Any:
    """The checkpoint after two epochs on one slot."""
    alone = floor(1, dnns=PLAIN)
    train(alone, ALONE, 2)
    alone.end()
    state = alone.checkpoint("a")
    shutil.rmtree(alone.ranks.contexts[0].output)
    return state


def test_the_first_pass_measures_a_rate_that_the_plan_lacks(floor: FloorMaker) -> None:
    alone = floor(1, dnns=PLAIN)
    alone.open(1, (ALONE,), alone.plan_of(ALONE, has_rates=False))
    _, message = alone.next_of(Happened)
    assert isinstance(message.event, RateMeasured)
    assert (message.event.dnn_id, message.event.num_slots) == ("a", 1)
    assert message.event.samples_per_s > 0.0
    assert message.event.start_s > 0.0
    assert len(go_on(alone, ALONE, 2, 1)) == 2  # measured once
    alone.end()


@pytest.mark.parametrize("fetches_ahead", [True, False])
def test_two_ranks_train_what_one_would(floor: FloorMaker, undisturbed: Any, fetches_ahead: bool) -> None:
    on = floor(2, dnns=PLAIN, fetches_ahead=fetches_ahead)
    reports = train(on, TOGETHER, 2)
    assert_same(on.checkpoint("a"), undisturbed)
    assert [report.metrics for report in reports] == [dict(r.metrics) for r in on.checkpoint("a").history]
    on.end()


def test_an_epoch_is_reported_with_what_was_measured_on_each_rank(floor: FloorMaker) -> None:
    on = floor(2, dnns=PLAIN)
    on.open(1, (TOGETHER,), on.plan_of(TOGETHER))
    source, happened = on.next_of(Happened)
    assert source == on.ranks.roles.trainer_ranks[1], "the master reports"
    facts = happened.event.facts
    spec = on.ranks.facts.spec
    num_steps = -(-spec.num_train // 8) + -(-(spec.num_positions - spec.num_train) // 8)
    assert (facts.num_steps, facts.num_samples) == (num_steps, spec.num_positions)
    assert facts.num_trained == spec.num_train
    assert sum(facts.ranks.samples) == spec.num_train
    assert len(facts.ranks.wait_s) == len(facts.ranks.compute_s) == 2
    assert 0.0 <= happened.event.busy_s <= happened.event.seconds
    on.order(Leave(1, "converged"), 0, 1)
    on.event()
    on.end()


@pytest.mark.parametrize("num_slots", [1, 2])
@pytest.mark.parametrize("only_slot", [0, None])
def test_a_stop_inside_a_pass_is_taken_up_where_it_was(
    floor: FloorMaker, undisturbed: Any, hooks: dict[str, Any], num_slots: int, only_slot: int | None
) -> None:
    """Whether all ranks of the group have heard of it by then or one: all stop after the same step."""
    group = group_of(num_slots)
    reported = group.slots if only_slot is None else (only_slot,)
    hooks["act"] = lambda step: on.order(Suspend(1), *reported) if step == 2 and is_slot(on, 0) else None
    on = floor(num_slots, dnns=HOOKED)
    on.open(1, (group,), on.plan_of(group))
    written = on.event()
    assert isinstance(written, CheckpointWritten)
    assert written.epoch == 0
    assert 16 <= written.position.offset < on.ranks.facts.spec.num_train
    assert on.event() == GroupLeft("a")
    on.end(75)
    state = on.checkpoint("a")
    assert state.position == written.position
    assert state.history == ()
    assert state.arrays[SUMS_NAME][0, 1] == written.position.offset, "samples behind the metrics so far"

    hooks["act"] = lambda step: None
    again = floor(num_slots, dnns=HOOKED)
    train(again, group, 2, start={"a": written.position})
    assert_same(again.checkpoint("a"), undisturbed)
    again.end()


def is_slot(floor: Any, slot: int) -> bool:
    """Whether the thread that calls plays the trainer of `slot`."""
    from in_process_toys import RANK

    return bool(RANK.number == floor.ranks.roles.trainer_ranks[slot])


def test_a_round_that_resumes_at_the_end_of_a_pass_does_not_report_it_again(
    floor: FloorMaker, undisturbed: Any
) -> None:
    on = floor(2, dnns=PLAIN)
    train(on, TOGETHER, 1)
    on.end()
    again = floor(2, dnns=PLAIN)
    start = Position(0, again.num_positions)
    again.open(1, (TOGETHER,), again.plan_of(TOGETHER, start={"a": start}, epochs=1))
    again.order(Proceed(1, 1, checkpoint=False), *TOGETHER.slots)
    (report,) = go_on(again, TOGETHER, 1, serial=1)
    assert report.pass_index == 1
    assert_same(again.checkpoint("a"), undisturbed)
    again.end()


def test_a_stop_between_passes_leaves_a_checkpoint_of_whole_epochs(floor: FloorMaker) -> None:
    on = floor(2, dnns=PLAIN)
    on.open(1, (TOGETHER,), on.plan_of(TOGETHER))
    assert isinstance(on.event(), EpochDone)
    on.order(Suspend(1), 0, 1)
    assert on.event() == CheckpointWritten("a", 1, Position(0, on.num_positions))
    assert on.event() == GroupLeft("a")
    on.end(75)
    assert SUMS_NAME not in on.checkpoint("a").arrays


def test_a_checkpoint_that_is_asked_for_is_written_while_training_continues(floor: FloorMaker) -> None:
    on = floor(2, dnns=PLAIN)
    on.open(1, (TOGETHER,), on.plan_of(TOGETHER))
    assert isinstance(on.event(), EpochDone)
    on.order(Proceed(1, 1, checkpoint=True), 0, 1)
    events = [on.event(), on.event()]
    assert CheckpointWritten("a", 1, Position(0, on.num_positions)) in events
    assert [event.pass_index for event in events if isinstance(event, EpochDone)] == [1]
    on.order(Leave(1, "converged"), 0, 1)
    assert on.event() == CheckpointWritten("a", 2, Position(1, on.num_positions))
    on.event()
    on.end()


def raised(error: BaseException) -> Callable[[int], None]:
    def act(step: int) -> None:
        raise error

    return act


TROUBLES: dict[str, tuple[Callable[[int], float | None], str, str]] = {
    "an exception": (raised(RuntimeError("the layers do not fit")), "error", "the layers do not fit"),
    "an exit": (raised(SystemExit(4)), "error", "SystemExit: 4"),
    "no Exception": (raised(asyncio.CancelledError("late")), "error", "CancelledError: late"),
    "no memory": (raised(MemoryError("17 GiB asked for")), "oom", "17 GiB asked for"),
    "not a number": (lambda step: float("nan"), "nan", "is not finite"),
}


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("at", [0, 3])
def test_a_failure_of_one_rank_is_that_of_the_group_and_is_reported_once(
    floor: FloorMaker, hooks: dict[str, Any], trouble: str, slot: int, at: int
) -> None:
    """In a step, or while the model is built; whichever rank it is, and both train the next DNN."""
    act, cause, detail = TROUBLES[trouble]
    if at == 0 and trouble == "not a number":
        act, cause, detail = raised(ValueError("no such size")), "error", "no such size"
    hooks["act"] = lambda step: act(step) if step == at and is_slot(on, slot) else None
    other = {"name": "b", "model": "in_process_toys:toy"}
    on = floor(2, dnns=[*HOOKED, other])
    on.open(1, (TOGETHER,), on.plan_of(TOGETHER))
    failed = on.event()
    assert isinstance(failed, DnnFailed), failed
    assert (failed.dnn_id, failed.cause) == ("a", cause)
    assert failed.rank == on.ranks.roles.trainer_ranks[slot]
    assert detail in failed.detail
    assert on.event() == GroupLeft("a")
    assert not on.ranks.contexts[0].dnn_directory("a").exists()
    group = GroupPlan("b", (0, 1))
    on.open(2, (group,), on.plan_of(group))
    done = on.event()
    assert isinstance(done, EpochDone)
    assert done.dnn_id == "b"
    on.order(Leave(2, "converged"), 0, 1)
    assert isinstance(on.event(), CheckpointWritten)
    assert on.event() == GroupLeft("b")
    on.end()


def test_a_failure_of_the_update_is_noticed_before_anything_is_saved(
    floor: FloorMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpcbal.training.emulated_backend import EmulatedReplica

    original, calls = EmulatedReplica.apply, []

    def apply(self: EmulatedReplica, tensors: Any) -> None:
        calls.append(self)
        if len(calls) == 3:
            raise MemoryError("for the update")
        original(self, tensors)

    monkeypatch.setattr(EmulatedReplica, "apply", apply)
    on = floor(2, dnns=PLAIN)
    on.open(1, (TOGETHER,), on.plan_of(TOGETHER))
    failed = on.event()
    assert isinstance(failed, DnnFailed)
    assert failed.cause == "oom"
    assert "for the update" in failed.detail
    assert on.event() == GroupLeft("a")
    on.end(3)


@pytest.mark.parametrize(
    ("epochs", "offset", "words"),
    [(1, 0, "holds no complete checkpoint, but epoch 1 is needed"), (0, 16, "but epoch 0 is needed")],
)
def test_a_checkpoint_that_is_needed_and_not_there_fails_the_dnn(
    floor: FloorMaker, epochs: int, offset: int, words: str
) -> None:
    on = floor(2, dnns=PLAIN)
    plan = on.plan_of(TOGETHER, start={"a": Position(epochs, offset)}, epochs=epochs)
    on.open(1, (TOGETHER,), plan)
    failed = on.event()
    assert isinstance(failed, DnnFailed)
    assert words in failed.detail
    assert on.event() == GroupLeft("a")
    on.end(3)


def test_a_checkpoint_of_another_moment_is_not_taken_for_the_one_that_is_needed(floor: FloorMaker) -> None:
    on = floor(1, dnns=PLAIN)
    train(on, ALONE, 1)
    on.end()
    again = floor(1, dnns=PLAIN)
    again.open(1, (ALONE,), again.plan_of(ALONE, start={"a": Position(2)}, epochs=2))
    failed = again.event()
    assert isinstance(failed, DnnFailed)
    assert "epoch=1" in failed.detail
    assert "epoch=2" in failed.detail
    assert again.event() == GroupLeft("a")
    again.end(3)


def test_a_dnn_that_stays_on_its_rank_is_not_read_again(floor: FloorMaker) -> None:
    on = floor(1, dnns=PLAIN)
    train(on, ALONE, 1)
    shutil.rmtree(on.ranks.contexts[0].dnn_directory("a"))
    (report,) = train(on, ALONE, 1, serial=2, start={"a": Position(1)}, epochs=1)
    assert report.pass_index == 1
    assert on.checkpoint("a").epoch == 2
    on.end()


def test_a_dnn_that_moves_to_another_rank_is_read_there(floor: FloorMaker, undisturbed: Any) -> None:
    on = floor(2, dnns=PLAIN)
    train(on, ALONE, 1)
    train(on, GroupPlan("a", (1,)), 1, serial=2, start={"a": Position(1)}, epochs=1)
    assert_same(on.checkpoint("a"), undisturbed)
    on.end()


def test_broken_samples_are_left_out_of_every_count(floor: FloorMaker) -> None:
    data = {"dataset": "in_process_toys:points", "args": {"broken": 10}, "max_bad_fraction": 0.5}
    on = floor(2, dnns=PLAIN, data=data)
    on.open(1, (TOGETHER,), on.plan_of(TOGETHER))
    _, happened = on.next_of(Happened)
    assert isinstance(happened.event, EpochDone)
    assert happened.event.facts.num_samples == on.num_positions - 10
    on.order(Leave(1, "converged"), 0, 1)
    on.event()
    on.end()


def test_with_too_many_broken_samples_no_epoch_is_reported_and_the_group_waits_to_be_stopped(
    floor: FloorMaker,
) -> None:
    data = {"dataset": "in_process_toys:points", "args": {"broken": 20}, "max_bad_fraction": 0.1}
    on = floor(2, dnns=PLAIN, data=data)
    on.open(1, (TOGETHER,), on.plan_of(TOGETHER))
    bad: set[int] = set()
    while len(bad) <= 6:  # as the scheduler would
        bad |= {sample_id for sample_id, _, _ in on.next_of(PreprocessorReport)[1].bad}
    on.order(Suspend(1), 0, 1)
    written = on.event()
    assert isinstance(written, CheckpointWritten), written
    assert written.epoch == 0
    assert on.event() == GroupLeft("a")
    on.end(2)


def test_a_round_takes_no_message_that_comes_after_the_order_to_leave(floor: FloorMaker) -> None:
    """A rank that polls late finds the order and what follows it; nobody would send that again."""
    data = {"dataset": "in_process_toys:points", "args": {"broken": 20}, "max_bad_fraction": 0.1}
    on = floor(2, dnns=PLAIN, data=data)
    on.open(1, (TOGETHER,), on.plan_of(TOGETHER))
    bad: set[int] = set()
    while len(bad) <= 6:
        bad |= {sample_id for sample_id, _, _ in on.next_of(PreprocessorReport)[1].bad}
    on.order(Suspend(1), 0, 1)
    on.end(2)

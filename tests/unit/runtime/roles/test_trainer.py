"""Trainers in threads over loopback; the test gives the scheduler's orders and is the preprocessor, too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from hpcbal.events.ensemble import CheckpointWritten, DnnFailed, EpochDone, GroupLeft, GroupPlan, RateMeasured
from hpcbal.events.history import Position
from hpcbal.runtime.wire.protocol import (
    FormGroup,
    Happened,
    Heartbeat,
    Leave,
    PreprocessorReport,
    Proceed,
    StopRequest,
    Suspend,
)

A, B = GroupPlan("a", (0,)), GroupPlan("b", (1,))


def test_a_group_trains_its_passes_until_it_is_to_leave(floor: Callable[..., Any]) -> None:
    on = floor(1)
    on.open(1, (A,), on.plan_of(A))
    for pass_index in range(2):
        done = on.event()
        assert isinstance(done, EpochDone)
        assert (done.dnn_id, done.pass_index) == ("a", pass_index)
        assert 0.0 <= done.metrics["val_accuracy"] <= 1.0
        if pass_index == 0:
            on.order(Proceed(1, 1, checkpoint=False), 0)
    on.order(Leave(1, "converged"), 0)
    assert on.event() == CheckpointWritten("a", 2, Position(1, on.num_positions))
    assert on.event() == GroupLeft("a")
    assert on.checkpoint("a").epoch == 2
    on.end()


def test_a_trainer_in_no_group_is_ready_at_once_and_stays_idle(floor: Callable[..., Any]) -> None:
    on = floor(2)
    on.open(1, (A,), on.plan_of(A))
    assert isinstance(on.event(), EpochDone)
    on.order(Leave(1, "converged"), 0)
    assert isinstance(on.event(), CheckpointWritten)
    assert on.event() == GroupLeft("a")
    on.open(2, (B,), on.plan_of(B))  # it is still there for the next groups
    assert isinstance(on.event(), EpochDone)
    on.order(Leave(2, "converged"), 1)
    assert isinstance(on.event(), CheckpointWritten)
    assert on.event() == GroupLeft("b")
    on.end()


def test_orders_for_earlier_groups_are_dropped(floor: Callable[..., Any]) -> None:
    on = floor(1)
    on.open(1, (A,), on.plan_of(A))
    assert isinstance(on.event(), EpochDone)
    on.order(Leave(1, "converged"), 0)
    assert isinstance(on.event(), CheckpointWritten)
    assert on.event() == GroupLeft("a")
    on.order(Suspend(1), 0)  # it comes after its groups
    on.order(Proceed(1, 9, checkpoint=False), 0)
    restart = on.plan_of(A, start={"a": Position(1)}, epochs=1)
    on.open(2, (A,), restart)
    on.order(Proceed(1, 9, checkpoint=False), 0)
    done = on.event()
    assert isinstance(done, EpochDone)
    assert done.pass_index == 1
    on.order(Leave(2, "converged"), 0)
    assert on.event() == CheckpointWritten("a", 2, Position(1, on.num_positions))
    assert on.event() == GroupLeft("a")
    on.end()


def test_a_wave_measures_all_its_groups_together_and_throws_the_weights_away(
    floor: Callable[..., Any],
) -> None:
    on = floor(2)
    on.open(1, (A, B), None)
    events = [on.event() for _ in range(4)]
    measured = {event.dnn_id: event for event in events if isinstance(event, RateMeasured)}
    assert measured.keys() == {"a", "b"}
    assert all(event.num_slots == 1 and event.samples_per_s > 0 for event in measured.values())
    assert {event for event in events if isinstance(event, GroupLeft)} == {GroupLeft("a"), GroupLeft("b")}
    assert not on.ranks.contexts[0].dnn_directory("a").exists()
    on.open(2, (A,), on.plan_of(A))
    assert isinstance(on.event(), EpochDone)
    on.order(Leave(2, "converged"), 0)
    assert isinstance(on.event(), CheckpointWritten)
    on.end()


def test_alone_a_dnn_is_trained_on_samples_that_its_rank_makes(floor: Callable[..., Any]) -> None:
    on = floor(2, schedule={"paradigm": "independent"})
    orders = {0: (7, A), 1: (8, B)}
    for slot, (serial, group) in orders.items():
        on.order(FormGroup(serial, on.plan_of(group)), slot)
    left = 0
    made: dict[int, int] = {}
    while left < 2:
        source, message = on.next_of(Happened, PreprocessorReport)
        if isinstance(message, PreprocessorReport):
            made[source] = message.samples_made
            continue
        if isinstance(message.event, EpochDone):
            slot = on.ranks.roles.trainer_ranks.index(source)
            assert message.serial == orders[slot][0]
            on.order(Leave(message.serial, "converged"), slot)
        left += isinstance(message.event, GroupLeft)
    assert set(made) == set(on.trainers)
    assert min(made.values()) >= on.num_positions
    assert [on.checkpoint(name).epoch for name in "ab"] == [1, 1]
    on.end()


def test_a_trainer_shows_that_it_lives_while_it_opens_its_data(
    floor: Callable[..., Any], hooks: dict[str, Any]
) -> None:
    """However long that takes: it is another rank of its group that waits, and the scheduler's clock."""
    lives = threading.Event()

    def open_slowly(_: int) -> None:
        is_a_trainer = threading.current_thread() is not threading.main_thread()
        assert not is_a_trainer or lives.wait(20.0), "nothing was heard of the trainer"

    hooks["open"] = open_slowly
    data = {"dataset": "in_process_toys:opened_by", "args": {"hook": "open"}}
    on = floor(1, data=data, stall_timeout_s=1.0)  # five signs of life in this time
    on.order(FormGroup(7, on.plan_of(A)), 0)
    heard = []
    while len(heard) < 4:
        heard += [on.next_of(Heartbeat)[1].doing]
    lives.set()
    assert set(heard) - {"idle"} == {"opening the data for a"}
    assert isinstance(on.event(), EpochDone)
    on.order(Leave(7, "converged"), 0)
    assert isinstance(on.event(), CheckpointWritten)
    assert on.event() == GroupLeft("a")
    on.end()


def test_a_shutdown_releases_replicas_threads_and_groups(
    floor: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from loopback_groups import LoopbackGroups

    from hpcbal.training.emulated_backend import EmulatedReplica

    closed: list[str] = []
    for owner, name in ((EmulatedReplica, "close"), (LoopbackGroups, "shutdown")):
        original = getattr(owner, name)

        def noted(self: Any, original: Any = original, name: str = name) -> None:
            closed.append(name)
            original(self)

        monkeypatch.setattr(owner, name, noted)
    before = set(threading.enumerate())
    on = floor(1)
    on.open(1, (A,), on.plan_of(A))
    assert isinstance(on.event(), EpochDone)
    on.order(Leave(1, "converged"), 0)
    on.event()
    assert on.event() == GroupLeft("a")
    on.end(3)
    assert sorted(closed) == ["close", "shutdown"]
    assert set(threading.enumerate()) <= before


def test_a_model_that_cannot_be_built_fails_its_group_and_the_trainer_lives_on(
    floor: Callable[..., Any],
) -> None:
    dnns = [
        {"name": "a", "model": "in_process_toys:toy", "args": {"depth": 8}},
        {"name": "b", "model": "in_process_toys:toy"},
    ]
    on = floor(1, dnns=dnns)
    on.open(1, (A,), on.plan_of(A))
    failed = on.event()
    assert isinstance(failed, DnnFailed)
    assert (failed.dnn_id, failed.cause) == ("a", "error")
    assert "has no argument 'depth'" in failed.detail
    assert on.event() == GroupLeft("a")
    on.open(2, (GroupPlan("b", (0,)),), on.plan_of(GroupPlan("b", (0,))))
    assert isinstance(on.event(), EpochDone)
    on.order(Leave(2, "converged"), 0)
    assert isinstance(on.event(), CheckpointWritten)
    on.end()


def test_an_idle_trainer_shows_that_it_lives_and_passes_a_signal_on(floor: Callable[..., Any]) -> None:
    on = floor(1)
    trainer = on.trainers[0]
    assert {on.next_of(Heartbeat) for _ in range(2)} == {
        (1, Heartbeat("idle")),
        (trainer, Heartbeat("idle")),
    }
    on.ranks.signal(trainer, "signal USR2")
    assert on.next_of(StopRequest) == (trainer, StopRequest(f"signal USR2 at rank {trainer}"))
    on.end(75)

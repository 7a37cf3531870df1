"""The slices of an executor: epochs with their sums, the first turns one by one, and a server's work."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from hpcbal.runtime.jobs.job_rank import SliceTrace
from hpcbal.telemetry.streams.slices import SliceRecorder


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Monotonic seconds, to be set; unix time is the same."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "time", lambda: now[0])
    return now


def shown(recorder: SliceRecorder) -> list[tuple[str, float, float]]:
    return [(one.name or one.kind, one.start_us / 1e6, one.end_us / 1e6) for one in recorder.take()]


def test_turns_are_shown_one_by_one_up_to_a_limit_and_epochs_whole(clock: list[float]) -> None:
    recorder = SliceRecorder(2)
    trace = SliceTrace(recorder, "mlr")
    for turn in range(3):
        trace.turn(0, turn, turn + 0.25, turn + 0.75)
    trace.turn(1, 4.0, 4.0, 4.5)  # nothing to wait for
    with trace.during("objective"):
        clock[0] = 6.0
    trace.end()
    assert shown(recorder) == [
        ("pull", 0.0, 0.25),
        ("compute", 0.25, 0.75),
        ("pull", 1.0, 1.25),
        ("compute", 1.25, 1.75),
        ("mlr epoch 1", 0.0, 2.75),
        ("compute", 4.0, 4.5),
        ("objective", 0.0, 6.0),
        ("mlr epoch 2", 4.0, 4.5),
    ]


def test_the_slice_of_an_epoch_has_its_sums(clock: list[float]) -> None:
    recorder = SliceRecorder(0)
    trace = SliceTrace(recorder, "mlr")
    for turn in range(5):
        trace.turn(7, turn, turn + 0.25, turn + 0.75)
    trace.end()
    (epoch,) = recorder.take()
    assert epoch.facts == {"turns": 5, "pull_s": 1.25, "compute_s": 2.5}


@pytest.mark.parametrize("is_worker", [False, True])
def test_a_server_works_while_it_answers_requests(clock: list[float], is_worker: bool) -> None:
    load = SimpleNamespace(requests=0)
    cursors = {3: None} if is_worker else {}
    executor: Any = SimpleNamespace(
        server=SimpleNamespace(load=load), samples=SimpleNamespace(cursors=cursors)
    )
    recorder = SliceRecorder(0)
    trace = SliceTrace(recorder, "mlr")
    poll = trace.poll_of(executor)
    for moment in range(100):
        clock[0] = moment * 0.01
        if moment == 25:
            load.requests = 0  # a report has been sent
        elif 10 < moment <= 40 or moment > 70:
            load.requests += 1
        assert poll(clock[0]) is False
    trace.end()
    found = shown(recorder)
    if is_worker:
        assert not found
        return
    assert [name for name, _, _ in found] == ["serve", "serve"]
    assert found[0][1:] == pytest.approx((0.1, 0.4), abs=0.011)
    assert found[1][1:] == pytest.approx((0.7, 0.99), abs=0.011)

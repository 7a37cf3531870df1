"""What a rank notes of its time: in order, bounded, and nothing when it is switched off."""

from __future__ import annotations

import pickle
import time

import pytest

from hpcbal.telemetry import slices
from hpcbal.telemetry.slices import COMPUTE, MAX_WAITING, REDUCE, WAIT, BusyTrace, SliceRecorder, StepTrace


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Monotonic seconds, to be set; unix time is 1000 s ahead."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "time", lambda: now[0] + 1000.0)
    return now


def test_a_slice_tells_unix_time_and_can_be_sent(clock: list[float]) -> None:
    recorder = SliceRecorder(4)
    recorder.add(COMPUTE, 2.0, 0.5)
    (only,) = recorder.take()
    assert (only.start_unix_s, only.seconds) == (1002.0, 0.5)
    assert pickle.loads(pickle.dumps(only)) == only
    assert recorder.take() == ()


def test_slices_are_sent_every_few_seconds(clock: list[float]) -> None:
    recorder = SliceRecorder(4)
    recorder.add(COMPUTE, 0.0, 0.5)
    assert recorder.take_due() == ()
    clock[0] = slices.SEND_INTERVAL_S
    assert len(recorder.take_due()) == 1
    recorder.add(COMPUTE, 0.0, 0.5)
    assert recorder.take_due() == ()


def test_what_waits_is_bounded() -> None:
    recorder = SliceRecorder(4)
    for _ in range(2 * MAX_WAITING):
        recorder.add(COMPUTE, 0.0, 0.1)
    assert len(recorder.take()) == MAX_WAITING


def test_nothing_is_noted_when_it_is_off() -> None:
    recorder = SliceRecorder(4, enabled=False)
    recorder.add(COMPUTE, 0.0, 0.1)
    with recorder.during("load"):
        pass
    assert recorder.take() == ()


def test_a_body_that_raises_is_noted_too(clock: list[float]) -> None:
    recorder = SliceRecorder(4)

    def fail() -> None:
        clock[0] = 3.0
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"), recorder.during("load", "load a"):
        fail()
    (only,) = recorder.take()
    assert (only.kind, only.name, only.seconds) == ("load", "load a", 3.0)


def test_the_first_steps_are_shown_and_all_are_counted(clock: list[float]) -> None:
    recorder = SliceRecorder(2)
    trace = StepTrace(recorder, "a", 7)
    for step in range(5):
        clock[0] = 10.0 * step + 9.0
        trace.step(10.0 * step + 1.0, 0.5, 10.0 * step + 5.0, 3.0)
    trace.end(0.0, 50.0, 2.5, 5)
    noted = recorder.take()
    assert [(s.kind, s.start_unix_s - 1000.0, s.seconds) for s in noted[:4]] == [
        (WAIT, 0.5, 0.5),
        (COMPUTE, 1.0, 4.0),
        (REDUCE, 5.0, 3.0),
        (COMPUTE, 8.0, 1.0),
    ]
    assert [s.kind for s in noted].count(REDUCE) == 2
    assert (noted[-1].name, noted[-1].seconds) == ("a pass 7", 50.0)
    assert noted[-1].facts == {"steps": 5, "wait_for_data_s": 2.5, "all_reduce_s": 15.0}


def test_a_group_of_one_only_computes(clock: list[float]) -> None:
    recorder = SliceRecorder(2)
    clock[0] = 3.0
    StepTrace(recorder, "a", 0).step(1.0, 0.0, 0.0, 0.0)
    assert [(s.kind, s.seconds) for s in recorder.take()] == [(COMPUTE, 2.0)]


def test_short_pauses_do_not_split_work(clock: list[float]) -> None:
    recorder = SliceRecorder(2)
    trace = BusyTrace(recorder, "preprocess")
    for at, worked in [(0.001, True), (0.005, False), (0.01, True), (0.2, False), (0.3, False), (0.4, True)]:
        clock[0] = at
        trace.note(worked)
    assert [(s.start_unix_s - 1000.0, s.seconds) for s in recorder.take()] == [(0.0, pytest.approx(0.01))]
    trace.end()
    (only,) = recorder.take()
    assert (only.start_unix_s - 1000.0, only.seconds) == pytest.approx((0.3, 0.1))


def test_long_work_is_shown_while_it_goes_on(clock: list[float]) -> None:
    recorder = SliceRecorder(2)
    trace = BusyTrace(recorder, "preprocess")
    for step in range(1, 31):
        clock[0] = step / 10
        trace.note(True)
    assert sum(s.seconds for s in recorder.take()) > 1.5

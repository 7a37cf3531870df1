"""Slices of a rank: in order, bounded, and none when they are disabled."""

from __future__ import annotations

import itertools
import pickle
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.telemetry.streams import slices
from hpcbal.telemetry.streams.slices import (
    COMPUTE,
    MAX_WAITING,
    REDUCE,
    WAIT,
    BusyTrace,
    Slice,
    SliceRecorder,
    StepTrace,
)


def seconds_of(one: Slice) -> tuple[float, float]:
    """Begin and end at the times of `clock`."""
    return one.start_us / 1e6 - 1000.0, one.end_us / 1e6 - 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Monotonic seconds, to be set; unix time is 1000 s ahead."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "time", lambda: now[0] + 1000.0)
    return now


def test_a_slice_reports_unix_time_and_can_be_sent(clock: list[float]) -> None:
    recorder = SliceRecorder(4)
    recorder.add(COMPUTE, 2.0, 2.5)
    (only,) = recorder.take()
    assert (only.start_us, only.end_us) == (1_002_000_000, 1_002_500_000)
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


@pytest.mark.parametrize(("num_ranks", "num_steps"), [(1, MAX_WAITING // 2), (1000, 10), (10**6, 0)])
def test_what_waits_is_bounded_and_steps_leave_room_for_passes(num_ranks: int, num_steps: int) -> None:
    recorder = SliceRecorder(4, num_ranks=num_ranks)
    for _ in range(2 * MAX_WAITING):
        recorder.add(COMPUTE, 0.0, 0.1)
    recorder.add("pass", 0.0, 0.1)
    kinds = [one.kind for one in recorder.take()]
    assert kinds == [COMPUTE] * num_steps + ["pass"]
    for _ in range(2 * MAX_WAITING):
        recorder.add("pass", 0.0, 0.1)
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
    assert (only.kind, only.name, *seconds_of(only)) == ("load", "load a", 0.0, 3.0)


def test_the_first_steps_are_shown_and_all_are_counted(clock: list[float]) -> None:
    recorder = SliceRecorder(2)
    trace = StepTrace(recorder, "a", 7)
    for step in range(5):
        clock[0] = 10.0 * step + 9.0
        trace.step(0.5, 10.0 * step + 1.0, 10.0 * step + 5.0, 10.0 * step + 8.0)
    clock[0] = 50.0
    assert trace.end() == 50.0
    noted = recorder.take()
    assert [(s.kind, *seconds_of(s)) for s in noted[:8]] == [
        (WAIT, 0.0, 0.5),
        (COMPUTE, 1.0, 5.0),
        (REDUCE, 5.0, 8.0),
        (COMPUTE, 8.0, 9.0),
        (WAIT, 9.0, 9.5),
        (COMPUTE, 11.0, 15.0),
        (REDUCE, 15.0, 18.0),
        (COMPUTE, 18.0, 19.0),
    ]
    assert [s.kind for s in noted].count(REDUCE) == 2
    assert (noted[-1].name, *seconds_of(noted[-1])) == ("a pass 7", 0.0, 50.0)
    assert noted[-1].facts == {"steps": 5, "wait_for_data_s": 2.5, "all_reduce_s": 15.0}


def test_a_group_of_one_only_computes(clock: list[float]) -> None:
    recorder = SliceRecorder(2)
    trace = StepTrace(recorder, "a", 0)
    clock[0] = 3.0
    trace.step(0.0, 1.0, 0.0, 0.0)
    assert [(s.kind, *seconds_of(s)) for s in recorder.take()] == [(COMPUTE, 1.0, 3.0)]


@given(st.lists(st.floats(0.0, 1e7), min_size=2, max_size=20))
def test_rounding_never_makes_neighbours_overlap(moments_s: list[float]) -> None:
    recorder = SliceRecorder(1)
    moments_s.sort()
    for began_s, ended_s in itertools.pairwise(moments_s):
        recorder.add(COMPUTE, began_s, ended_s)
    recorder.add("pass", moments_s[0], moments_s[-1])
    *steps, whole = recorder.take()
    assert [one.end_us for one in steps[:-1]] == [one.start_us for one in steps[1:]]
    assert (whole.start_us, whole.end_us) == (steps[0].start_us, steps[-1].end_us)


def test_short_pauses_do_not_split_work(clock: list[float]) -> None:
    recorder = SliceRecorder(2)
    trace = BusyTrace(recorder, "preprocess")
    for at, worked in [(0.001, True), (0.005, False), (0.01, True), (0.2, False), (0.3, False), (0.4, True)]:
        clock[0] = at
        trace.note(worked)
    assert [seconds_of(s) for s in recorder.take()] == [pytest.approx((0.0, 0.01))]
    trace.end()
    (only,) = recorder.take()
    assert seconds_of(only) == pytest.approx((0.3, 0.4))


def test_long_work_is_shown_while_it_continues(clock: list[float]) -> None:
    recorder = SliceRecorder(2)
    trace = BusyTrace(recorder, "preprocess")
    for step in range(1, 31):
        clock[0] = step / 10
        trace.note(True)
    assert sum(s.end_us - s.start_us for s in recorder.take()) > 1.5e6

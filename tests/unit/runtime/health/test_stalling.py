"""Silent ranks are detected, but not after a pause of the scheduler itself."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcbal.cluster.roles import RankInfo, assign_roles
from hpcbal.errors import ExitCode
from hpcbal.runtime.health.liveness import Liveness
from hpcbal.runtime.health.silence import (
    BLOCKED,
    HangTrace,
    StallDetector,
    StalledError,
    heartbeat_interval_s,
)
from hpcbal.runtime.wire.protocol import WRITING, Heartbeat, ReaderReady


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def noted() -> list[str]:
    return []


@pytest.fixture
def detector(clock: Clock, noted: list[str]) -> StallDetector:
    roles = assign_roles([RankInfo(rank, 0, "node7", rank, 0) for rank in range(6)], 4, 1)
    return StallDetector(60.0, roles, Path("out/logs"), noted.append, clock)


def live(detector: StallDetector, clock: Clock, seconds: int, *speaking: int) -> None:
    """Second by second, these ranks are heard of."""
    for _ in range(seconds):
        clock.now += 1.0
        for rank in speaking:
            detector.heard_of(rank, Heartbeat(f"training dnn-{rank}"))
        detector.check()


def test_ranks_that_speak_are_left_alone(detector: StallDetector, clock: Clock):
    live(detector, clock, 500, 1, 2, 3, 4, 5)


def test_a_check_is_due_a_second_after_the_last_one(detector: StallDetector, clock: Clock):
    assert not detector.is_due()
    clock.now += 1.0
    assert detector.is_due()
    detector.check()
    assert not detector.is_due()


def test_each_check_is_a_sign_of_life_of_the_scheduler(detector: StallDetector, noted: list[str]):
    detector.check()
    detector.check()
    assert noted == ["scheduling"] * 2


def test_any_message_is_a_sign_of_life(detector: StallDetector, clock: Clock):
    live(detector, clock, 50, 1, 2, 3, 4)
    detector.heard_of(5, ReaderReady(1))
    live(detector, clock, 50, 1, 2, 3, 4)


def test_all_that_fell_silent_together_are_named_with_what_they_did(detector: StallDetector, clock: Clock):
    live(detector, clock, 10, 1, 2, 3, 4, 5)
    live(detector, clock, 4, 1, 2, 3, 5)
    live(detector, clock, 56, 1, 2, 5)
    with pytest.raises(StalledError) as caught:
        live(detector, clock, 1, 1, 2, 5)
    assert caught.value.exit_code == ExitCode.STALLED
    assert str(caught.value) == (
        "no sign of life for 61 s (stall_timeout_s: 60) of rank 4 on host node7 (last seen training dnn-4), "
        "rank 3 on host node7 (last seen training dnn-3); their stack traces are in "
        "out/logs/rank-NNN.log. The job ends here; run the same command again to resume from the last "
        "checkpoints"
    )


def test_a_run_that_is_to_stop_waits_less_for_a_silent_rank(detector: StallDetector, clock: Clock):
    live(detector, clock, 8, 1, 2, 3)
    live(detector, clock, 9, 1, 2, 3, 4, 5)  # both were silent for 9 s before
    detector.hasten("signal SIGUSR1")
    live(detector, clock, 18, 1, 2, 3, 4)
    with pytest.raises(
        StalledError, match=r"no sign of life for 19 s of rank 5 on host node7 \(last seen training dnn-5\);"
    ) as caught:
        live(detector, clock, 1, 1, 2, 3, 4)
    assert caught.value.exit_code == ExitCode.RUN_AGAIN
    assert str(caught.value).startswith("the run is to stop, but ")


@pytest.mark.parametrize("reason", ["signal SIGTERM", "signal SIGINT at rank 2"])
def test_term_and_ctrl_c_wait_for_nobody_longer_than_six_seconds(
    detector: StallDetector, clock: Clock, reason: str
):
    """They count from the signal: who has been silent for longer by then may be about to go on."""
    live(detector, clock, 9, 1, 2, 3)
    live(detector, clock, 9, 1, 2, 3, 4, 5)
    live(detector, clock, 5, 1, 2, 3, 4)
    detector.hasten(reason)
    live(detector, clock, 6, 1, 2, 3, 4)
    with pytest.raises(StalledError, match=r"no sign of life for 12 s of rank 5 on host node7 "):
        live(detector, clock, 1, 1, 2, 3, 4)


def test_that_a_read_lasts_long_is_no_sign_of_life(detector: StallDetector, clock: Clock):
    live(detector, clock, 2, 1, 2, 3, 4, 5)
    detector.hasten("the walltime is nearly over")
    live(detector, clock, 3, 1, 2, 3, 4)
    detector.heard_of(5, Heartbeat(f"{BLOCKED} sample 7 (row 7)"))
    live(detector, clock, 3, 1, 2, 3, 4)
    with pytest.raises(
        StalledError,
        match=r"no sign of life for 7 s of rank 5 on .* \(last seen blocked in reading sample 7 ",
    ):
        live(detector, clock, 1, 1, 2, 3, 4)


def test_a_run_that_is_to_stop_waits_for_a_checkpoint(detector: StallDetector, clock: Clock):
    live(detector, clock, 1, 1, 2, 3, 4, 5)
    detector.hasten("signal SIGTERM")
    detector.heard_of(5, Heartbeat(f"{WRITING}dnn-5"))
    live(detector, clock, 50, 1, 2, 3)
    detector.heard_of(5, Heartbeat("idle"))
    with pytest.raises(StalledError, match="of rank 4 on"):
        live(detector, clock, 1, 1, 2, 3)


def test_more_than_a_few_are_counted(detector: StallDetector, clock: Clock):
    with pytest.raises(StalledError, match=r"\(last seen starting\) and 1 more; "):
        live(detector, clock, 61)


def test_a_job_that_was_stopped_as_a_whole_continues(detector: StallDetector, clock: Clock):
    """As when the batch system suspends it: the first look afterwards comes before anybody could speak."""
    live(detector, clock, 10, 1, 2, 3, 4, 5)
    clock.now += 3600.0
    detector.check()
    live(detector, clock, 100, 1, 2, 3, 4, 5)


@pytest.mark.parametrize("timeout_s", [0.5, 2.0, 600.0])
def test_heartbeats_come_several_times_before_the_timeout(timeout_s: float):
    assert heartbeat_interval_s(timeout_s) <= min(5.0, timeout_s / 5)


def test_where_a_rank_hangs_is_written_into_its_log(tmp_path: Path):
    log = tmp_path / "rank-003.log"
    liveness = Liveness()
    liveness.start()
    with liveness.traced(log, 0.25):
        liveness.note("training a")
        deadline = time.monotonic() + 20.0
        while not log.read_text(encoding="utf-8") and time.monotonic() < deadline:
            time.sleep(0.02)
    assert "test_where_a_rank_hangs_is_written_into_its_log" in log.read_text(encoding="utf-8")


BUSY_PROCESS = """
import sys, threading, time
from pathlib import Path
from hpcbal.runtime.health.silence import HangTrace

def recurse(depth):
    return depth and recurse(depth - 1) + sum(number for number in range(3))

def work():
    while True:
        recurse(20)

log = Path(sys.argv[1])
threading.Thread(target=work, daemon=True).start()
trace = HangTrace(log, 0.002)

def watch():
    while True:
        time.sleep(min(0.002, trace.left_s()))
        trace.look()

trace.renew()
threading.Thread(target=watch, daemon=True).start()
deadline = time.monotonic() + 60.0
while log.read_text().count("most recent call first") < 100 and time.monotonic() < deadline:
    trace.renew()
    time.sleep(0.01)
"""


def test_stacks_are_written_while_other_threads_work(tmp_path: Path):
    """In a process of its own: stacks that change while they are read end it with a segmentation fault."""
    log = tmp_path / "rank-003.log"
    done = subprocess.run([sys.executable, "-c", BUSY_PROCESS, str(log)], timeout=120, check=False)
    assert done.returncode == 0
    assert log.read_text(encoding="utf-8").count("in recurse") >= 20


def test_a_paused_or_closed_trace_writes_nothing(tmp_path: Path):
    log = tmp_path / "rank-003.log"
    trace = HangTrace(log, 0.0)
    trace.renew()
    trace.pause()
    trace.look()
    trace.renew()
    trace.close()
    trace.look()
    assert not log.read_text(encoding="utf-8")

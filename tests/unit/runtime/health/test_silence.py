"""A rank that does the same for too long hangs; one that waits for others does not."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from hpcbal.cluster.roles import RankInfo
from hpcbal.errors import ExitCode
from hpcbal.runtime.evaluating.workers import WAITING, Life
from hpcbal.runtime.handoff.rank_process import Activity
from hpcbal.runtime.handoff.start_file import StartFile
from hpcbal.runtime.health.silence import SilenceDetector
from hpcbal.runtime.health.watchdog import PeerWatch

RANKS = [RankInfo(rank, 0, "here", 0, 0) for rank in range(2)]
TIMEOUT_S = 10.0


@pytest.fixture
def suspended() -> Iterator[int]:
    """A process that SIGSTOP has suspended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        yield process.pid
        process.kill()


def looks(*doing: tuple[float, str, str]) -> list[str | None]:
    """What a detector says at these times, when the two ranks do this."""
    detector = SilenceDetector(RANKS, TIMEOUT_S, WAITING, "logs")
    return [detector.look({0: first, 1: second}, now_s) for now_s, first, second in doing]


def test_the_silent_rank_is_named_with_what_it_does() -> None:
    *before, message = looks(*((4.0 * i, WAITING, "evaluating a") for i in range(4)))
    assert before == [None] * 3
    assert message is not None
    assert message.startswith(
        "no sign of life for 12 s (stall_timeout_s: 10) of rank 1 on host here (last seen evaluating a); "
        "stack traces are in logs."
    )


def test_progress_and_waiting_are_no_silence() -> None:
    assert looks(*((4.0 * i, WAITING, f"sample {i}") for i in range(20))) == [None] * 20


def test_a_suspended_rank_is_silent_even_while_it_waits(suspended: int) -> None:
    ranks = [RankInfo(0, 0, "here", os.getpid(), 0), RankInfo(1, 0, "here", suspended, 0)]
    detector = SilenceDetector(ranks, TIMEOUT_S, WAITING, "logs")
    *before, message = [detector.look(dict.fromkeys(range(2), WAITING), 4.0 * i) for i in range(4)]
    assert before == [None] * 3
    assert message is not None
    assert "of rank 1 on host here (last seen waiting for other ranks, suspended);" in message


def test_another_rank_reports_the_silence_of_a_suspended_first_rank(
    suspended: int, capfd: pytest.CaptureFixture[str]
) -> None:
    codes: queue.Queue[int] = queue.Queue()
    end: Any = SimpleNamespace(announced=lambda: False, abort=codes.put, activity_of=lambda rank: WAITING)
    ranks = [RankInfo(0, 0, "here", suspended, 0), RankInfo(1, 0, "here", os.getpid(), 0)]
    watch = PeerWatch(1, ranks, lambda rank: "evaluator", end, StartFile(None))
    watch.watch_silence(0.2, WAITING, "logs")
    assert codes.get(timeout=20) == ExitCode.STALLED
    watch.stop()
    assert "rank 0 on host here (last seen waiting for other ranks, suspended)" in capfd.readouterr().err


def test_the_time_in_which_this_process_was_stopped_does_not_count() -> None:
    assert looks((0.0, "a", "b"), (100.0, "a", "b"), (104.0, "a", "b")) == [None] * 3


def test_silence_ends_the_job_with_its_own_code() -> None:
    codes: queue.Queue[int] = queue.Queue()
    end: Any = SimpleNamespace(
        announced=lambda: False, abort=codes.put, activity_of=["evaluating a", WAITING].__getitem__
    )
    ranks = RANKS[:1]
    watch = PeerWatch(0, ranks, lambda rank: "evaluator", end, StartFile(None))
    watch.watch_silence(0.2, WAITING, "logs")
    assert codes.get(timeout=20) == ExitCode.STALLED
    watch.stop()


def test_a_rank_notes_that_it_waits_and_what_it_does_afterwards() -> None:
    activity, calls = Activity(), []
    trace: Any = SimpleNamespace(renew=lambda: calls.append("renew"), pause=lambda: calls.append("pause"))
    life = Life(activity, trace)
    life.note("evaluating a")
    with life.waiting():
        assert str(activity) == WAITING
    assert str(activity) == "evaluating a"
    assert life.doing("opening the data", lambda: str(activity))() == "opening the data"
    assert str(activity) == WAITING
    assert calls == ["renew", "pause", "renew", "renew", "pause"]

"""A rank that does the same for too long hangs; one that waits for others does not."""

from __future__ import annotations

import math
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcbal.cluster.roles import RankInfo
from hpcbal.errors import ExitCode
from hpcbal.runtime.handoff.leftovers import EVALUATING
from hpcbal.runtime.health.liveness import ROW_BYTES, Liveness
from hpcbal.runtime.health.silence import WAITING, Note, NoteWatch, Silence

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


def looks(*doing: tuple[float, str, str], beats: bool = False) -> list[str | None]:
    """Return the findings at these times, when the two ranks do this."""
    watch = NoteWatch(RANKS, TIMEOUT_S, Path("logs"), 0.0, EVALUATING)
    found = []
    for number, (now_s, *texts) in enumerate(doing):
        found.append(watch.look({rank: Note(beats * number, texts[rank]) for rank in range(2)}, now_s))
    return [None if silence is None else silence.sentence for silence in found]


def test_the_silent_rank_is_named_with_what_it_does() -> None:
    *before, message = looks(*((4.0 * i, WAITING, "evaluating a") for i in range(4)))
    assert before == [None] * 3
    assert message == (
        "no sign of life for 12 s (stall_timeout_s: 10) of rank 1 on host here (last seen evaluating a); "
        "their stack traces are in logs/rank-NNN.log. The job ends here; nothing was written; run the same "
        "command again"
    )


def test_progress_waiting_and_starting_are_no_silence() -> None:
    assert looks(*((4.0 * i, WAITING, f"sample {i}") for i in range(20))) == [None] * 20
    assert looks(*((4.0 * i, "", WAITING) for i in range(20))) == [None] * 20


def test_a_beat_is_a_sign_of_life_without_other_words() -> None:
    assert looks(*((4.0 * i, "scheduling", "scheduling") for i in range(20)), beats=True) == [None] * 20


def test_a_suspended_rank_is_silent_even_while_it_waits(suspended: int) -> None:
    ranks = [RankInfo(0, 0, "here", os.getpid(), 0), RankInfo(1, 0, "here", suspended, 0)]
    watch = NoteWatch(ranks, TIMEOUT_S, Path("logs"), 0.0)
    notes = dict.fromkeys(range(2), Note(1, WAITING))
    *before, silence = [watch.look(notes, 4.0 * i) for i in range(4)]
    assert before == [None] * 3
    assert isinstance(silence, Silence)
    assert silence.ranks == [1]
    assert "of rank 1 on host here (last seen waiting for other ranks, suspended);" in silence.sentence


def watching(rank: int, *pids: int, of: set[int] | None = None) -> tuple[Liveness, queue.Queue[int]]:
    """The liveness of a rank of a node that notes nothing new, and the codes with which it ends the job."""
    codes: queue.Queue[int] = queue.Queue()
    liveness = Liveness(rank)
    liveness.share(bytearray(ROW_BYTES * len(pids)), ROW_BYTES * len(pids), rank)
    ranks = [RankInfo(number, 0, "here", pid, 0) for number, pid in enumerate(pids)]
    liveness.watch(rank, ranks, lambda rank: "evaluator", codes.put)
    liveness.watch_notes(0.2, Path("logs"), of)
    liveness.start()
    return liveness, codes


def test_another_rank_reports_the_silence_of_a_suspended_first_rank(
    suspended: int, capfd: pytest.CaptureFixture[str]
) -> None:
    liveness, codes = watching(1, suspended, os.getpid(), of={0})
    assert codes.get(timeout=20) == ExitCode.STALLED
    liveness.stop()
    assert "rank 0 on host here (last seen starting, suspended)" in capfd.readouterr().err


def test_another_rank_reports_the_silence_of_a_first_rank_that_runs_and_hangs(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Its own thread cannot: code in C may hold Python's lock."""
    liveness, codes = watching(1, os.getppid(), os.getpid(), of={0})
    first = Liveness(0)
    first.note("scheduling")
    liveness._rows[0][:] = first._mine
    assert codes.get(timeout=20) == ExitCode.STALLED
    liveness.stop()
    assert "rank 0 on host here (last seen scheduling);" in capfd.readouterr().err


def test_the_time_in_which_this_process_was_stopped_does_not_count() -> None:
    assert looks((0.0, "a", "b"), (100.0, "a", "b"), (104.0, "a", "b")) == [None] * 3


def test_silence_ends_the_job_with_its_own_code() -> None:
    liveness, codes = watching(0, os.getpid())
    liveness.note("evaluating a")
    assert codes.get(timeout=20) == ExitCode.STALLED
    liveness.stop()


def test_a_rank_notes_that_it_waits_and_what_it_does_afterwards(tmp_path: Path) -> None:
    liveness = Liveness()
    with liveness.traced(tmp_path / "rank-000.log", 600.0):
        trace = liveness._trace
        assert trace is not None
        liveness.note("evaluating a")
        assert trace.left_s() < math.inf
        with liveness.waiting():
            assert (str(liveness), trace.left_s()) == (WAITING, math.inf)
        assert str(liveness) == "evaluating a"
        assert trace.left_s() < math.inf
        assert liveness.doing("opening the data", lambda: str(liveness))() == "opening the data"
        assert (str(liveness), trace.left_s()) == (WAITING, math.inf)

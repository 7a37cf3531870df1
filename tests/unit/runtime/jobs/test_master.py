"""The master of one or many jobs: how a run ends, and what it hears of starts that are over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from loopback import LoopbackChannel

from hpcbal.comm.channel import Message
from hpcbal.config import ParamServerConfig
from hpcbal.errors import ExitCode
from hpcbal.paramserver.engine.wire import NUM_STREAMS
from hpcbal.paramserver.master import messages
from hpcbal.paramserver.master.events import Heard
from hpcbal.runtime.health import silence
from hpcbal.runtime.health.silence import HeldUpError, StallDetector
from hpcbal.runtime.jobs.checkpoint import JOBS_FOLDER
from hpcbal.runtime.jobs.job import Job, Start
from hpcbal.runtime.jobs.loading import Cut
from hpcbal.runtime.jobs.master import JobPlacement, Master
from hpcbal.runtime.jobs.messages import EndRun, ForJob, HostJob, Left
from hpcbal.runtime.jobs.record import JobsProgress
from hpcbal.runtime.wire.protocol import Heartbeat, StopRequest, TimelinePart
from hpcbal.telemetry.files.run_directory import RunDirectory

EXECUTORS = (1, 2)
OWNERS = (EXECUTORS, EXECUTORS)


class Shown(JobsProgress):
    """Keeps how the run has ended."""

    ends: tuple[Any, ...] = ()

    def finish(self, outcome: str, exit_code: int, suspended: str) -> int:
        self.ends = outcome, exit_code, suspended
        return exit_code


class OneAfterTheOther(JobPlacement):
    """Starts each job once, on all ranks."""

    def __init__(self, master: Master) -> None:
        self._master = master

    @property
    def expects_more(self) -> bool:
        waiting = [job for job in self._master.jobs.values() if job.state == "expected"]
        for job in waiting[:1]:
            self._master.start(job, EXECUTORS, OWNERS)
        return bool(waiting)


def job_of(name: str) -> Job:
    config = {"app": "m:f", "data": {"dataset": "m:d"}, "mini_batch": 10, "name": name}
    job = Job(ParamServerConfig.model_validate(config), seed=0)
    job.loaded, job.cut = cast(Any, SimpleNamespace(num_samples=60)), Cut(2, (2,))
    return job


class Run:
    """A master whose ranks have sent everything before it begins.

    Args:
        names: of its jobs.
        of: class of the master.
        stall_timeout_s: see the configuration.
    """

    def __init__(
        self, tmp_path: Path, *names: str, of: type[Master] = Master, stall_timeout_s: float = 60.0
    ) -> None:
        self.channels = LoopbackChannel.connect(len(EXECUTORS) + 1)
        roles = SimpleNamespace(
            ranks=[SimpleNamespace(rank=number, host="n") for number in range(3)], executor_ranks=EXECUTORS
        )
        rank = SimpleNamespace(
            config=SimpleNamespace(
                walltime=None, checkpoint=SimpleNamespace(interval_s=60.0), stall_timeout_s=stall_timeout_s
            ),
            roles=roles,
            stall_detector=lambda: StallDetector(60.0, cast(Any, roles), tmp_path),
            channel=self.channels[0],
            stop=SimpleNamespace(take=lambda: None),
            is_ending=lambda: False,
        )
        self.record = Shown()
        self.jobs = {name: job_of(name) for name in names}
        request = SimpleNamespace(started_s=time.time())
        self.directory = RunDirectory(tmp_path, JOBS_FOLDER)
        self.master = of(cast(Any, rank), cast(Any, request), self.directory, self.jobs, self.record)
        self.master.placement = OneAfterTheOther(self.master)

    def sends(self, *sent: tuple[int, Message]) -> None:
        for rank, message in sent:
            self.channels[rank].send(0, message)

    def fails(self, number: int, *, hangs: bool = False) -> None:
        """Rank 1 fails in a start, and both leave."""
        self.sends(
            (1, ForJob(number, messages.Failed("app", "no more"))),
            (2, ForJob(number, messages.Paused({}))),
            (1, Left(number, hangs)),
            (2, Left(number)),
        )

    def received(self, rank: int) -> list[Message]:
        found = []
        while (each := self.channels[rank].receive()) is not None:
            found.append(each[1])
        return found


@pytest.mark.parametrize(
    ("code", "wanted"),
    [(None, ("failed", int(ExitCode.FAILED_DNNS), "")), (2, ("suspended", 2, ""))],
    ids=["the job", "the disk"],
)
def test_what_an_executor_reports_decides_how_the_run_ends(
    tmp_path: Path, code: int | None, wanted: tuple[Any, ...]
) -> None:
    run = Run(tmp_path, "a")
    run.sends(
        (1, ForJob(1, messages.Failed("error", "no space", code))),
        (2, ForJob(1, messages.Paused({}))),
        (1, Left(1)),
        (2, Left(1)),
    )
    assert run.master.run() == wanted[1]
    assert run.record.ends == wanted
    assert (run.jobs["a"].cause, run.jobs["a"].detail) == ("error", "no space")
    received = run.received(1)
    assert isinstance(received[0], HostJob)
    assert received[-1] == EndRun(wanted[1])


def test_a_stop_ends_what_runs_and_starts_nothing_else(tmp_path: Path) -> None:
    run = Run(tmp_path, "a", "b")
    run.sends(
        (2, StopRequest("SIGTERM at rank 2")),
        (1, ForJob(1, messages.Paused({}))),
        (2, ForJob(1, messages.Paused({}))),
        (1, Left(1)),
        (2, Left(1)),
    )
    assert run.master.run() == ExitCode.RUN_AGAIN
    assert run.record.ends == ("suspended", int(ExitCode.RUN_AGAIN), "SIGTERM at rank 2")
    assert [job.state for job in run.jobs.values()] == ["waiting", "expected"]


def test_a_job_that_hangs_does_not_hold_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rank sends heartbeats, because its code hangs in a thread; the other executor pauses."""
    monkeypatch.setattr(silence, "LEAST_STOP_S", 0.3)
    run = Run(tmp_path, "a", "b")
    run.sends((2, StopRequest("SIGTERM at rank 2")), (2, ForJob(1, messages.Paused({}))))
    started_s = time.monotonic()
    with pytest.raises(
        HeldUpError, match=r"the run is to stop, but there is no sign of life for \d s of a; "
    ):
        run.master.run()
    assert 0.3 < time.monotonic() - started_s < 5.0


@pytest.mark.parametrize(("phase", "is_held_up"), [("pausing", True), ("saving", False), ("writing", False)])
def test_a_job_that_writes_a_checkpoint_keeps_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str, is_held_up: bool
) -> None:
    monkeypatch.setattr(silence, "LEAST_STOP_S", 0.0)
    run = Run(tmp_path, "a")
    start = run.master.start(run.jobs["a"], EXECUTORS, OWNERS)
    monkeypatch.setattr(start.machine, "_phase", phase)
    time.sleep(0.01)
    assert (start.held_up_s("signal SIGTERM") > 0.0) == is_held_up


def test_one_that_hung_is_not_heard_any_more_and_keeps_its_tags(tmp_path: Path) -> None:
    run = Run(tmp_path, "a", "b")
    run.master._last_number = NUM_STREAMS - 1
    first, second = NUM_STREAMS, NUM_STREAMS + 1
    run.fails(first, hangs=True)
    run.sends((1, ForJob(first, messages.TurnDone(0, (0,), 5, 0.1, 0.1, 0.1, 10))))  # it goes on after all
    run.fails(second)
    assert run.master.run() == ExitCode.FAILED_DNNS
    run.jobs["c"] = job_of("c")
    run.master._last_number = 2 * NUM_STREAMS - 1  # the next one would have the tags of the first
    assert run.master.start(run.jobs["c"], EXECUTORS, OWNERS).number == 2 * NUM_STREAMS + 1


def test_a_slow_master_is_no_silence_of_executors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a file system takes long to write; what executors have sent waits in the mailbox."""
    monkeypatch.setattr(silence, "LEAST_STOP_S", 0.3)
    monkeypatch.setattr(StallDetector, "is_due", lambda self: True)
    run, handle = Run(tmp_path, "a"), Master._handle

    def handle_slowly(master: Master, start: Any, event: Any) -> None:
        handle(master, start, event)
        time.sleep(0.6)

    monkeypatch.setattr(Master, "_handle", handle_slowly)
    paused = [(rank, ForJob(1, messages.Paused({}))) for rank in EXECUTORS]
    beats = [(rank, Heartbeat("")) for rank in EXECUTORS]
    run.sends((2, StopRequest("SIGTERM at rank 2")), *beats, *paused, *beats, (1, Left(1)), (2, Left(1)))
    assert run.master.run() == ExitCode.RUN_AGAIN


def test_what_takes_the_master_long_between_two_messages_is_no_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks at the clocks behind the first message, before it takes those that waited."""
    monkeypatch.setattr(silence, "LEAST_STOP_S", 0.3)
    monkeypatch.setattr(StallDetector, "is_due", lambda self: True)
    run = Run(tmp_path, "a")

    def note_slowly(rank: int, slices: Any) -> None:
        time.sleep(0.6)

    monkeypatch.setattr(run.record, "note_slices", note_slowly)
    paused = [(rank, ForJob(1, messages.Paused({}))) for rank in EXECUTORS]
    run.sends((2, StopRequest("SIGTERM at rank 2")), (1, TimelinePart(())), *paused)
    run.sends((1, Left(1)), (2, Left(1)))
    assert run.master.run() == ExitCode.RUN_AGAIN


def test_no_silence_is_left_out_twice(tmp_path: Path) -> None:
    run = Run(tmp_path, "a")
    start = run.master.start(run.jobs["a"], EXECUTORS, OWNERS)
    now_s = time.monotonic()
    start.leave_out(100.0, now_s)
    assert start.heard_s == now_s


@pytest.mark.parametrize(("reason", "is_held_up"), [("signal SIGTERM", True), ("signal SIGUSR1", False)])
def test_only_a_stop_in_no_hurry_waits_as_long_as_turns_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str, is_held_up: bool
) -> None:
    monkeypatch.setattr(silence, "LEAST_STOP_S", 0.0)
    run = Run(tmp_path, "a")
    start = run.master.start(run.jobs["a"], EXECUTORS, OWNERS)
    start.longest_silence_s = 20.0
    time.sleep(0.01)
    assert (start.held_up_s(reason) > 0.0) == is_held_up


class Answering(Master):
    """Its executors answer every order at once, with turns that do the whole epoch."""

    def tell(self, start: Start, order: Message, to: Sequence[int]) -> None:
        for rank in to:
            self._events.extend((start, Heard(rank, answer)) for answer in self.answers(order, rank - 1))
        if isinstance(order, messages.EndStart):
            for rank in to:
                self._left(start, rank)

    def answers(self, order: Message, block: int) -> list[messages.Report]:
        match order:
            case messages.Assign():
                return [messages.Ready({})]
            case messages.Initialise():
                return [messages.Initialised()]
            case messages.MayStart(limit):
                return [messages.TurnDone(limit - 1, (block,), 5, 0.1, 0.1, 0.1, 10)]
            case messages.Evaluate(epoch):
                return [messages.Evaluated(epoch, {block: {"loss": 1.0}}, {block: {}}, 0.1)]
            case messages.Pause():
                return [messages.Paused({block: 6})]
            case messages.Save(number):
                return [messages.Saved(number)]
        return []


def run_with(run: Run, metrics: Callable[[Any], Any]) -> int:
    """Run a job whose app computes metrics like this; returns the exit code."""
    loaded = cast(Any, run.jobs["a"].loaded)
    loaded.app, loaded.fingerprint = SimpleNamespace(metrics=metrics), lambda seed: "data"
    run.directory.job("a").mkdir(parents=True)
    return run.master.run()


def test_a_stop_waits_for_no_metrics(tmp_path: Path) -> None:
    """The checkpoint of the stop is written without them."""
    run, is_over = Run(tmp_path, "a", of=Answering), threading.Event()

    def metrics(sums: Any) -> dict[str, float]:
        run.sends((2, StopRequest("signal SIGTERM at rank 2")))
        assert is_over.wait(20.0)
        return {"loss": 1.0}

    assert run_with(run, metrics) == ExitCode.RUN_AGAIN
    assert run.jobs["a"].saved is not None
    assert run.jobs["a"].saved.history == ()
    is_over.set()


def test_metrics_that_hang_end_their_job(tmp_path: Path) -> None:
    run, is_over = Run(tmp_path, "a", of=Answering, stall_timeout_s=0.3), threading.Event()
    assert run_with(run, lambda sums: is_over.wait(20.0)) == ExitCode.STALLED
    job = run.jobs["a"]
    assert job.cause == "stalled"
    assert job.detail.startswith("no sign of life for 0.3 s (stall_timeout_s) of the app's metrics; ")
    is_over.set()

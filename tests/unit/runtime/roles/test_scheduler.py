"""The scheduler over loopback channels: the test plays all other ranks, whenever the scheduler waits."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from hpcbal.comm.channel import Message
from hpcbal.config.scheduling import settings_of, specs_of
from hpcbal.control.ensemble import Ensemble
from hpcbal.control.progress import ResumeState
from hpcbal.errors import HpcbalError
from hpcbal.events.ensemble import (
    CheckpointWritten,
    ChooseSchedule,
    DnnFailed,
    EpochDone,
    Event,
    GroupLeft,
    Instruction,
    PreprocessingMeasured,
    RateMeasured,
    ScheduleChosen,
    SchedulePrediction,
    Started,
    SuspendRequested,
)
from hpcbal.events.history import EpochFacts, Position
from hpcbal.policies.rates import RateTable
from hpcbal.runtime.health import silence
from hpcbal.runtime.record.console import Console
from hpcbal.runtime.record.journal import Journal
from hpcbal.runtime.roles.scheduler import ScheduleChooser, Scheduler
from hpcbal.runtime.wire.protocol import (
    COMPILING,
    DataLoading,
    EndStream,
    FillCache,
    FormGroup,
    Happened,
    Heartbeat,
    Leave,
    OpenData,
    OpenGroups,
    PreprocessorReport,
    Proceed,
    ReaderReady,
    Shutdown,
    StartStream,
    StopRequest,
    StreamEnded,
    Suspend,
)
from hpcbal.simulator.choosing import Outset, choose_schedule
from hpcbal.telemetry.ledger.dnn_lines import BadSampleLine

PREPROCESSOR, TRAINERS = 1, (2, 3)
EPOCH = EpochFacts(0.1, 4, 60, 48, 0.5)
METRICS = {"loss": 1.0, "accuracy": 0.5, "val_loss": 1.0, "val_accuracy": 0.5}
ONE_DNN = [{"name": "a", "model": "in_process_toys:toy"}]

Script = Iterator[None]
"""The acts of the other ranks: each `yield` lets the scheduler work until it waits again."""


class Listener(Ensemble):
    """The real state machine; notes the events in the order in which it sees them."""

    seen: list[Event]

    def handle(self, event: Event) -> list[Instruction]:
        self.seen.append(event)
        return super().handle(event)


class Silent:
    """A journal and a console that keep what the scheduler gives them, and write nothing."""

    def __init__(self) -> None:
        self.start_s: dict[str, float] = {}
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def finish(self, *args: Any) -> str:
        self.calls.append(("finish", args))
        return "the table"

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: self.calls.append((name, args))

    def of(self, name: str) -> list[tuple[Any, ...]]:
        """Arguments of the calls of one method."""
        return [args for called, args in self.calls if called == name]


class Stage:
    """A scheduler whose waits advance a script.

    Args:
        ranks: of the run; only their channels are used.
        known: whether the DNNs' rates are; else they are profiled.
        chooser: chooses schedules; None: as in a run.
        profile_only: as for the scheduler.
    """

    def __init__(self, ranks: Any, *, known: bool = True, chooser: Any = None) -> None:
        self.ranks, self.channels, self.spec = ranks, ranks.channels, ranks.facts.spec
        config = ranks.config
        rates = RateTable({dnn.name: {1: 100.0, 2: 190.0} for dnn in config.dnns} if known else {}, 2)
        settings = replace(settings_of(config, self.spec.num_positions), profile=not known)
        self.ensemble = Listener(specs_of(config), ranks.roles.cluster, settings, rates, ResumeState())
        self.ensemble.seen = []
        self.journal, self.console = Silent(), Silent()
        self.scheduler = Scheduler(
            ranks.contexts[0],
            self.spec,
            self.ensemble,
            cast(Journal, self.journal),
            cast(Console, self.console),
            started_s=0.0,
            backoff=cast(Any, lambda: self),
            chooser=chooser,
        )
        self.script: Script = iter(())

    def play(self, script: Script) -> int:
        self.script = script
        code = self.scheduler.run()
        assert next(self.script, "the end") == "the end", "the run ended before the script"
        return code

    # ---- as a Backoff --------------------------------------------------------------------------

    def reset(self) -> None:
        """Something has arrived."""

    def wait(self) -> None:
        if next(self.script, "the end") == "the end":
            raise AssertionError("the scheduler waits, but no rank has anything more to report")

    # ---- what the script does ------------------------------------------------------------------

    def send(self, rank: int, message: Message) -> None:
        self.channels[rank].send(0, message)

    def report(self, serial: int, event: Event, rank: int = TRAINERS[0]) -> None:
        self.send(rank, Happened(serial, event))

    def get(self, rank: int) -> Any:
        """The next message to `rank`, which must be there."""
        found = self.channels[rank].receive()
        assert found is not None, f"rank {rank} got nothing"
        assert found[0] == 0
        return found[1]

    def nothing_for(self, *ranks: int) -> None:
        for rank in ranks:
            assert self.channels[rank].receive() is None, rank

    def open(self) -> Iterator[None]:
        """All trainers get ready for the groups; the order is in `opened` afterwards."""
        for rank in TRAINERS:
            self.opened: OpenGroups = self.get(rank)
            assert isinstance(self.opened, OpenGroups)
            self.send(rank, ReaderReady(self.opened.serial))
        yield
        assert self.get(PREPROCESSOR) == StartStream(self.opened.stream)

    def epoch(self, dnn_id: str = "a", pass_index: int = 0) -> None:
        self.report(self.opened.serial, EpochDone(dnn_id, pass_index, METRICS, 1.0, facts=EPOCH))

    def leave(self, dnn_id: str, epochs: int, position: Position, serial: int | None = None) -> None:
        serial = self.opened.serial if serial is None else serial
        self.report(serial, CheckpointWritten(dnn_id, epochs, position, 0.1, 0.01))
        self.report(serial, GroupLeft(dnn_id))

    def end_stream(self) -> Iterator[None]:
        """The preprocessor ends its stream."""
        assert self.get(PREPROCESSOR) == EndStream(self.opened.stream.generation)
        self.nothing_for(*TRAINERS)
        self.send(PREPROCESSOR, StreamEnded(self.opened.stream.generation))
        yield

    def all_get_shutdown(self, code: int) -> None:
        for rank in (PREPROCESSOR, *TRAINERS):
            assert self.get(rank) == Shutdown(code)


@pytest.fixture
def stage(make_ranks: Callable[..., Any]) -> Callable[..., Stage]:
    def make(
        max_epochs: int = 1, dnns: Any = ONE_DNN, known: bool = True, chooser: Any = None, **given: Any
    ) -> Stage:
        defaults = {
            "batch_size": 16,
            "optimizer": {"name": "sgd", "learning_rate": 0.1},
            "stop": {"max_epochs": max_epochs},
        }
        ranks = make_ranks(num_slots=2, dnns=dnns, defaults=defaults, **given)
        return Stage(ranks, known=known, chooser=chooser)

    return make


def test_a_stream_starts_when_all_readers_are_ready_and_ends_when_all_groups_have_left(stage) -> None:
    on = stage(max_epochs=2)
    end = on.spec.num_positions

    def script() -> Script:
        orders = [on.get(rank) for rank in TRAINERS]
        assert orders[0] == orders[1]
        on.opened = orders[0]
        assert [group.dnn_id for group in on.opened.groups] == ["a"]
        assert on.opened.round_plan is not None
        on.send(TRAINERS[1], ReaderReady(on.opened.serial))
        yield
        on.nothing_for(PREPROCESSOR)
        on.send(TRAINERS[0], ReaderReady(on.opened.serial))
        yield
        assert on.get(PREPROCESSOR) == StartStream(on.opened.stream)
        on.epoch(pass_index=0)
        yield
        for rank in TRAINERS:
            assert on.get(rank) == Proceed(on.opened.serial, 1, checkpoint=True)
        on.report(on.opened.serial, CheckpointWritten("a", 1, Position(0, end)))
        on.epoch(pass_index=1)
        yield
        for rank in TRAINERS:
            assert on.get(rank) == Leave(on.opened.serial, "converged")
        on.nothing_for(PREPROCESSOR)
        on.leave("a", 2, Position(1, end))
        yield
        yield from on.end_stream()

    assert on.play(script()) == 0
    on.all_get_shutdown(0)
    ((_, outcome, code),) = on.journal.of("finish")
    assert (outcome, code) == ("done", 0)
    assert on.console.of("show_end") == [("the table", None)]


def test_events_are_decided_on_in_the_order_of_their_arrival_even_while_answers_are_awaited(stage) -> None:
    """Preprocessors report while the trainers form their groups; the reports are not lost, nor decided on."""
    on = stage()

    def script() -> Script:
        on.opened = on.get(TRAINERS[0])
        on.get(TRAINERS[1])
        on.send(TRAINERS[0], ReaderReady(1))
        on.send(PREPROCESSOR, PreprocessorReport(100, 1.0))
        on.send(TRAINERS[0], StopRequest("signal TERM at rank 2"))
        yield
        assert on.ensemble.seen == [Started()], "it decided while groups were formed"
        on.send(TRAINERS[1], ReaderReady(1))
        yield
        assert on.ensemble.seen[1:] == [
            PreprocessingMeasured(100.0),
            SuspendRequested("signal TERM at rank 2"),
        ]
        on.get(PREPROCESSOR)
        for rank in TRAINERS:
            assert on.get(rank) == Suspend(1)
        on.leave("a", 0, Position(0, 16))
        yield
        yield from on.end_stream()

    assert on.play(script()) == 75
    on.all_get_shutdown(75)
    assert on.journal.of("finish")[0][1:] == ("suspended", 75)


@pytest.mark.parametrize("who", ["another rank", "rank 0 itself"])
def test_a_request_to_stop_suspends_the_groups(stage, who: str) -> None:
    on = stage()

    def script() -> Script:
        yield from on.open()
        if who == "another rank":  # a launcher signals all of them
            on.send(PREPROCESSOR, StopRequest("signal TERM at rank 1"))
            on.send(TRAINERS[0], StopRequest("signal TERM at rank 2"))
            on.ranks.signal(0, "signal TERM")
        else:
            on.ranks.signal(0, "signal USR2")
        yield
        if who != "another rank":
            yield  # the look at the clocks only queues it
        for rank in TRAINERS:
            assert on.get(rank) == Suspend(on.opened.serial)
        on.leave("a", 0, Position(0, 32))
        yield
        yield from on.end_stream()

    assert on.play(script()) == 75
    reason = "signal TERM at rank 1" if who == "another rank" else "signal USR2"
    assert [e for e in on.ensemble.seen if isinstance(e, SuspendRequested)] == [SuspendRequested(reason)]
    assert on.ensemble.state.dnns["a"].position == Position(0, 32)


def test_messages_that_keep_coming_do_not_hide_a_signal(stage, monkeypatch: pytest.MonkeyPatch) -> None:
    on = stage()
    receive, numbers = on.channels[0].receive, itertools.count()

    def never_empty() -> tuple[int, Message]:
        assert next(numbers) < 1000, "the scheduler only reads messages"
        return receive() or (PREPROCESSOR, Heartbeat("preprocessing"))

    def script() -> Script:
        yield from on.open()
        on.ranks.signal(0, "signal USR2")
        monkeypatch.setattr(on.channels[0], "receive", never_empty)
        monkeypatch.setattr(silence, "LOOK_INTERVAL_S", 0.0, raising=False)
        yield
        yield
        for rank in TRAINERS:
            assert on.get(rank) == Suspend(on.opened.serial)
        monkeypatch.undo()
        on.leave("a", 0, Position(0, 32))
        yield
        yield from on.end_stream()

    assert on.play(script()) == 75


def test_a_failed_dnn_frees_its_slots_and_gives_the_exit_code_3(stage) -> None:
    on = stage()

    def script() -> Script:
        yield from on.open()
        on.report(on.opened.serial, DnnFailed("a", "nan", "a loss is not finite"))
        on.report(on.opened.serial, GroupLeft("a"))
        yield
        yield from on.end_stream()

    assert on.play(script()) == 3
    on.all_get_shutdown(3)
    assert on.journal.of("finish")[0][1] == "failed-dnns"


def test_what_a_rank_has_to_say_of_its_cache_is_printed_with_the_node(stage) -> None:
    on = stage()

    def script() -> Script:
        yield from on.open()
        on.send(PREPROCESSOR, PreprocessorReport(8, 0.0, warning="the cache does not grow any more"))
        on.send(PREPROCESSOR, PreprocessorReport(9, 0.0))
        on.send(TRAINERS[0], StopRequest("signal TERM at rank 2"))
        yield
        for rank in TRAINERS:
            assert on.get(rank) == Suspend(on.opened.serial)
        on.leave("a", 0, Position(0, 16))
        yield
        yield from on.end_stream()

    assert on.play(script()) == 75
    assert on.console.of("warn") == [("host: the cache does not grow any more",)]


def test_too_many_broken_samples_suspend_the_run_and_are_its_exit_code(stage) -> None:
    on = stage(data={"dataset": "in_process_toys:points", "max_bad_fraction": 0.05})  # 3 of 60

    def script() -> Script:
        yield from on.open()
        on.send(PREPROCESSOR, PreprocessorReport(8, 0.0, tuple((i, f"point {i}", "lost") for i in range(3))))
        yield
        on.nothing_for(*TRAINERS)
        on.send(PREPROCESSOR, PreprocessorReport(9, 0.0, ((2, "point 2", "lost"), (3, "point 3", "lost"))))
        yield
        for rank in TRAINERS:
            assert on.get(rank) == Suspend(on.opened.serial)
        on.send(PREPROCESSOR, PreprocessorReport(9, 0.0, ((4, "point 4", "lost"),)))
        on.leave("a", 0, Position(0, 16))
        yield
        yield from on.end_stream()

    assert on.play(script()) == 2
    assert on.ensemble.seen.count(SuspendRequested("too many broken samples")) == 1
    assert on.console.of("note_error") == [()]
    published = [line for (line,) in on.journal.of("publish")]
    broken = [line.where for line in published if isinstance(line, BadSampleLine)]
    assert broken == [f"point {i}" for i in range(5)]
    ((_, fatal),) = on.console.of("show_end")
    assert "4 of 60 samples are broken" in str(fatal)


def test_an_event_of_other_groups_is_a_bug_of_ours(stage) -> None:
    on = stage()

    def script() -> Script:
        yield from on.open()
        on.report(on.opened.serial + 1, GroupLeft("a"))
        yield

    with pytest.raises(RuntimeError, match=r"got an event of groups 2, but the current groups are 1"):
        on.play(script())


def test_a_message_that_is_not_for_the_scheduler_is_a_bug_of_ours(stage) -> None:
    on = stage()

    def script() -> Script:
        on.send(PREPROCESSOR, Shutdown(0))
        yield

    with pytest.raises(TypeError, match=r"the scheduler got Shutdown\(exit_code=0\) from rank 1"):
        on.play(script())


def test_measurements_are_recorded_when_they_arrive_and_people_hear_of_loading(stage) -> None:
    on = stage()

    def script() -> Script:
        yield from on.open()
        on.send(TRAINERS[0], DataLoading("a", "all of it"))
        on.send(TRAINERS[1], Heartbeat("training a"))
        for rank in TRAINERS:
            on.send(rank, Heartbeat(f"{COMPILING}a"))
        on.epoch()
        yield
        for rank in TRAINERS:
            on.get(rank)
        on.leave("a", 1, Position(0, on.spec.num_positions))
        yield
        yield from on.end_stream()

    on.play(script())
    assert on.console.of("note_loading") == [("a", "all of it")]
    compiling = [line for (line,) in on.console.of("note") if "compiling" in line]
    assert compiling == ["compiling the module of a (torch.compile), which may take minutes"]
    published = [line for (line,) in on.journal.of("publish")]
    assert [line for line in published if isinstance(line, EpochDone | CheckpointWritten | GroupLeft)] == [
        EpochDone("a", 0, METRICS, 1.0, facts=EPOCH),
        CheckpointWritten("a", 1, Position(0, on.spec.num_positions), 0.1, 0.01),
        GroupLeft("a"),
    ]


def test_unknown_rates_are_measured_before_the_first_round(stage) -> None:
    """A wave of profiling has groups but no plan; each wave and each round has a serial of its own."""
    on = stage(known=False)
    waves = []

    def script() -> Script:
        yield from on.open()
        while on.opened.round_plan is None:
            waves.append([(group.dnn_id, len(group.slots)) for group in on.opened.groups])
            for group in on.opened.groups:
                rate = RateMeasured(group.dnn_id, len(group.slots), 100.0 * len(group.slots))
                on.report(on.opened.serial, rate)
                on.report(on.opened.serial, GroupLeft(group.dnn_id))
            yield
            yield from on.end_stream()
            yield from on.open()
        on.epoch()
        yield
        for rank in TRAINERS:
            assert isinstance(on.get(rank), Leave)
        on.leave("a", 1, Position(0, on.spec.num_positions))
        yield
        yield from on.end_stream()

    assert on.play(script()) == 0
    assert sorted(size for wave in waves for _, size in wave) == [1, 2]
    assert on.opened.serial == on.opened.stream.generation == len(waves) + 1


def test_independent_dnns_train_alone_and_no_stream_is_shared(stage) -> None:
    dnns = [{"name": name, "model": "in_process_toys:toy"} for name in "ab"]
    on = stage(dnns=dnns, schedule={"paradigm": "independent"})
    end = on.spec.num_positions

    def script() -> Script:
        assert [on.get(rank) for rank in TRAINERS] == [OpenData()] * len(TRAINERS), "all of them"
        orders: dict[int, FormGroup] = {rank: on.get(rank) for rank in TRAINERS}
        assert on.get(1) == FillCache(0)
        assert sorted(order.serial for order in orders.values()) == [1, 2]
        for rank, order in orders.items():
            (group,) = order.round_plan.groups
            assert on.ranks.roles.trainer_ranks[group.slots[0]] == rank
            on.report(order.serial, EpochDone(group.dnn_id, 0, METRICS, 1.0, facts=EPOCH), rank)
            yield
            assert on.get(rank) == Leave(order.serial, "converged")
            on.leave(group.dnn_id, 1, Position(0, end), order.serial)
            yield
        # What it has put into the cache since its last report counts, too.
        assert on.get(PREPROCESSOR) == EndStream(2)
        on.send(PREPROCESSOR, PreprocessorReport(60, 0.1))
        on.send(PREPROCESSOR, StreamEnded(2))
        yield

    assert on.play(script()) == 0
    on.all_get_shutdown(0)
    ((stats, *_),) = on.journal.of("finish")
    assert stats.samples_made == 60


class SlowChooser:
    """Keeps the question until the test answers it."""

    def __init__(self) -> None:
        self.asked: ChooseSchedule | None = None
        self.answer: ScheduleChosen | None = None

    def ask(self, asked: ChooseSchedule, ensemble: Ensemble, start_s: Any) -> None:
        self.asked = asked

    def take(self) -> ScheduleChosen | None:
        answer, self.answer = self.answer, None
        return answer

    def choose(self, paradigm: str) -> None:
        """Answer with the first candidate of this paradigm."""
        assert self.asked is not None
        schedule = next(each for each in self.asked.candidates if each.paradigm == paradigm)
        self.answer = ScheduleChosen(schedule, (SchedulePrediction(schedule, 1.0, 1),))


def answer_of(chooser: ScheduleChooser) -> ScheduleChosen:
    """Wait for the answer."""
    while (choice := chooser.take()) is None:
        time.sleep(0.001)
    return choice


def test_ranks_are_served_while_a_schedule_is_chosen(stage) -> None:
    chooser = SlowChooser()
    on = stage(chooser=chooser, schedule={})

    def script() -> Script:
        on.nothing_for(*TRAINERS)
        on.send(PREPROCESSOR, PreprocessorReport(100, 1.0))
        yield
        assert on.ensemble.seen == [Started(), PreprocessingMeasured(100.0)]
        on.nothing_for(*TRAINERS)
        chooser.choose("global")
        yield
        yield  # the answer was taken before this wait
        yield from on.open()
        on.epoch()
        yield
        for rank in TRAINERS:
            assert isinstance(on.get(rank), Leave)
        on.leave("a", 1, Position(0, on.spec.num_positions))
        yield
        yield from on.end_stream()

    assert on.play(script()) == 0
    on.all_get_shutdown(0)


def test_a_stop_while_a_schedule_is_chosen_ends_the_run_at_once(stage) -> None:
    chooser = SlowChooser()
    on = stage(chooser=chooser, schedule={})

    def script() -> Script:
        on.send(TRAINERS[0], StopRequest("signal TERM at rank 2"))
        yield  # the search goes on, and nobody waits for it

    assert on.play(script()) == 75
    on.all_get_shutdown(75)


def test_a_schedule_is_chosen_in_a_thread_and_a_failed_search_is_an_error(stage) -> None:
    on, gate = stage(schedule={}), threading.Event()

    def search(outset: Outset, asked: ChooseSchedule) -> ScheduleChosen:
        gate.wait(10.0)
        if asked.current is not None:
            raise HpcbalError("no rates")
        return choose_schedule(outset, asked)

    chooser = ScheduleChooser(on.spec, search)
    (asked,) = on.ensemble.handle(Started())
    chooser.ask(asked, on.ensemble, {})
    assert chooser.take() is None
    gate.set()
    choice = answer_of(chooser)
    assert choice.schedule in asked.candidates
    assert chooser.take() is None  # an answer is taken once
    chooser.ask(replace(asked, current=choice.schedule), on.ensemble, {})
    with pytest.raises(HpcbalError, match="no rates"):
        answer_of(chooser)

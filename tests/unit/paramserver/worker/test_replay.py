"""A recorded run of workers, replayed: the same orders and answers make them do the same again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from hpcbal.comm.channel import Message
from hpcbal.paramserver.api.batch import DataBlock
from hpcbal.paramserver.api.update import Table
from hpcbal.paramserver.master import messages
from hpcbal.paramserver.worker.resources import Resources, Waits
from hpcbal.paramserver.worker.samples import Cursor, WorkerSamples
from hpcbal.paramserver.worker.worker import Worker
from hpcbal.simulator.paramserver import executor as driver
from hpcbal.simulator.paramserver.job import ServingJob, ServingMachine
from hpcbal.simulator.paramserver.run import simulate_roles

WAITING = ("load", "save", "pull", "compute", "push")
LISTED = ("first_blocks", "evaluated_together", "parameter_objectives")
READ = ("now_s", "worker_bytes", "failure", "server_is_quiet", "num_unapplied")


@dataclass
class Call:
    """A call of a worker's hands, the number of its waits, and the answer."""

    asked: str
    waits: int = 0
    answer: Any = None


@dataclass
class Recorded:
    """The story of one worker: what came to it, its calls of hands, and its reports."""

    steps: int | None
    resources: Resources
    owner: int
    inputs: list[tuple[str, Any]] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)
    is_inside: bool = False  # conditions, which the driver looks at, are none of the worker's calls

    def inside(self, name: str, content: Any, act: Callable[[], Any]) -> Any:
        """Note that something comes to the worker, and let it act."""
        self.inputs.append((name, content))
        before, self.is_inside = self.is_inside, True
        try:
            return act()
        finally:
            self.is_inside = before

    def note(self, name: str, *args: Any) -> Call:
        """Note a call."""
        self.calls.append(Call(f"{name} {args!r}"))
        return self.calls[-1]


class Recording:
    """Hands that write down what is asked of them."""

    def __init__(self, hands: Any, story: Recorded) -> None:
        self._hands, self._story, self._num_pushes = hands, story, 0

    def __getattr__(self, name: str) -> Any:
        story, found = self._story, getattr(self._hands, name)
        if name in READ:
            if story.is_inside:
                story.note(name).answer = found
            return found
        if name == "push":
            return lambda updates, step, applied: self._waits(name, (updates, step), self._heard(applied))
        if name in WAITING:
            return lambda *args, **keys: self._waits(name, (*args, keys))
        return found if name == "during" else lambda *args: self._answers(name, *args)

    def _heard(self, applied: Callable[[], None]) -> Callable[[], None]:
        number, self._num_pushes = self._num_pushes, self._num_pushes + 1
        return lambda: self._story.inside("applied", number, applied)

    def _waits(self, name: str, args: tuple[Any, ...], *applied: Callable[[], None]) -> Waits[Any]:
        call = self._story.note(name, *args)
        keys = args[-1] if isinstance(args[-1], dict) else {}
        doing = getattr(self._hands, name)(*(args[:-1] if keys or args[-1] == {} else args), *applied, **keys)
        while True:
            try:
                condition = next(doing)
            except StopIteration as over:
                call.answer = over.value
                return over.value
            call.waits += 1
            yield condition

    def _answers(self, name: str, *args: Any) -> Any:
        call, answer = self._story.note(name, *args), getattr(self._hands, name)(*args)
        call.answer = list(answer) if name in LISTED else answer
        return iter(call.answer) if name in LISTED else answer


class Replaying:
    """Hands that give the recorded answers, if they are asked the same."""

    def __init__(self, story: Recorded, samples: WorkerSamples, job: ServingJob) -> None:
        self._calls, self._samples, self._job = iter(story.calls), samples, job
        self._owner, self.applied = story.owner, list[Callable[[], None]]()
        self.during = driver.VirtualExecutor.during.__get__(self)

    def _next(self, name: str, *args: Any) -> Call:
        call = next(self._calls)
        assert f"{name} {args!r}" == call.asked
        return call

    def __getattr__(self, name: str) -> Any:
        if name in READ:
            return self._next(name).answer
        if name == "push":
            return self._push
        if name in WAITING:
            return lambda *args, **keys: self._waits(name, *args, keys)
        return lambda *args: self._answers(name, *args)

    def _push(self, updates: Any, step: int, applied: Callable[[], None]) -> Waits[Any]:
        self.applied.append(applied)
        return self._waits("push", updates, step)

    def _waits(self, name: str, *args: Any) -> Waits[Any]:
        call = self._next(name, *args)
        if name == "load":
            for number, owner in enumerate(args[0].data_owner):
                if owner == self._owner:
                    self._samples.add(DataBlock(number, self._job.cut.first(number), {}, {}), Cursor())
        for _ in range(call.waits):
            yield bool
        return call.answer

    def _answers(self, name: str, *args: Any) -> Any:
        answer = self._next(name, *args).answer
        return iter(answer) if name in LISTED else answer

    @property
    def are_over(self) -> bool:
        """Whether nothing else was asked in the recorded run."""
        return next(self._calls, None) is None


@pytest.fixture
def stories(monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    """Workers of simulated jobs that are recorded."""
    found: list[Recorded] = []

    class RecordedWorker(Worker):  # type: ignore[type-arg]
        def __init__(self, steps, samples, hands, place, report, moves_of) -> None:  # type: ignore[no-untyped-def]
            self.story = Recorded(steps, place, hands._rank)
            found.append(self.story)

            def reported(each: messages.Report) -> None:
                self.story.reports.append(repr(each))
                report(each)

            super().__init__(steps, samples, Recording(hands, self.story), place, reported, moves_of)  # type: ignore[arg-type]

        def hear(self, message: Message) -> None:
            self.story.inside("hear", message, lambda: super(RecordedWorker, self).hear(message))

        def life(self) -> Iterator[Callable[[], bool]]:  # type: ignore[override]
            life = super().life()
            while True:
                yield self.story.inside("goes on", None, lambda: next(life))

    monkeypatch.setattr(driver, "Worker", RecordedWorker)
    return found


@pytest.mark.parametrize("staleness", [None, 0, 2])
def test_a_replayed_worker_asks_and_reports_the_same(stories: list[Recorded], staleness: int | None) -> None:
    table = Table("model", 1000, 50)
    mini_batch = 10 if staleness is None else 40
    job = ServingJob(240, 24, mini_batch, staleness, (table,), (12,), max_epochs=3)
    simulate_roles(job, [ServingMachine(0.05, 1e6)] * 5, 3, 2)
    assert len(stories) == 5
    for story in stories:
        samples = WorkerSamples(job.cut, job.seed, story.steps, mini_batch, driver._natural_order)
        hands, reports = Replaying(story, samples, job), list[str]()
        worker: Worker[Any, Any, Any, Any] = Worker(
            story.steps,
            samples,
            hands,  # type: ignore[arg-type]
            story.resources,
            lambda each, reports=reports: reports.append(repr(each)),  # type: ignore[misc]
        )
        life = worker.life()
        for name, content in story.inputs:
            match name:
                case "hear":
                    worker.hear(content)
                case "applied":
                    hands.applied[content]()
                case _:
                    next(life)
        assert reports == story.reports
        assert hands.are_over
    assert sum("TurnDone" in report for story in stories for report in story.reports) > 15

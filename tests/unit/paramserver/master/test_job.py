"""The machine of a parameter-server job, with executors that answer in any order."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbal.events.history import EpochRecord
from hpcbal.paramserver.master import messages
from hpcbal.paramserver.master.bounded_staleness import BoundedStaleness
from hpcbal.paramserver.master.events import (
    BlockMove,
    ComputeMetrics,
    End,
    EndRequested,
    EpochEnded,
    Event,
    ExecutorsReady,
    Heard,
    Instruction,
    ManifestWritten,
    MetricsComputed,
    Outcome,
    Reconfigure,
    Reconfigured,
    SaveRequested,
    Send,
    StopRequested,
    WriteManifest,
)
from hpcbal.paramserver.master.job import JobError, JobMachine, JobSpec
from hpcbal.paramserver.master.stopping import JobStop


@dataclass
class Block:
    """A data block at an executor: where it goes on, and what it did."""

    cursor: int = 0
    evaluated: int = 0


@dataclass
class Executors:
    """Executors that do what they are told, each at its own pace; orders to one arrive in order."""

    machine: JobMachine
    rng: random.Random
    blocks: dict[int, Block]
    metric: Callable[[int], float] = field(default=lambda epoch: 1.0 / epoch)
    orders: dict[int, deque[messages.Order]] = field(default_factory=dict)
    limit: dict[int, int] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)  # epoch at which each parameter block was evaluated
    heard: dict[int, int] = field(default_factory=dict)  # the last epoch that an executor was to evaluate
    paused: set[int] = field(default_factory=set)
    moving: list[tuple[messages.MoveBlocks, int]] = field(default_factory=list)  # still with their owners
    leaving: list[tuple[messages.MoveBlocks, int]] = field(default_factory=list)
    arriving: list[Event] = field(default_factory=list)
    dead: set[int] = field(default_factory=set)  # that answer no pause
    asked: int = 0
    turns: list[tuple[int, int]] = field(default_factory=list)  # (data block, step), in order
    ended: list[EpochEnded] = field(default_factory=list)
    manifests: list[WriteManifest] = field(default_factory=list)
    reconfigured: list[Reconfigured] = field(default_factory=list)
    end: End | None = None

    def owned(self, executor: int, what: messages.What = "data") -> list[int]:
        away = {b for order, _ in self.leaving if order.what == what for b in order.blocks}
        owners = self.machine.owners(what)
        return [b for b, owner in enumerate(owners) if owner == executor and b not in away]

    def tell(self, event: Event) -> None:
        for instruction in self.machine.handle(event):
            self._perform(instruction)

    def _perform(self, instruction: Instruction) -> None:
        match instruction:
            case Send(order, to):
                for executor in to:
                    self.orders.setdefault(executor, deque()).append(order)
            case ComputeMetrics(epoch, sums):
                assert sums["blocks"] == len(self.blocks)
                self.arriving.append(MetricsComputed(epoch, {"loss": self.metric(epoch)}, 1.0))
            case EpochEnded():
                self.ended.append(instruction)
            case WriteManifest(number):
                assert len(self.paused) == len(self.machine.spec.executors)
                assert not self.leaving
                if self.machine.spec.pace.staleness == 0:  # or who is behind would see others' updates
                    assert len({block.cursor for block in self.blocks.values()}) == 1
                self.manifests.append(instruction)
                self.arriving.append(ManifestWritten(number))
            case Reconfigured():
                self.reconfigured.append(instruction)
            case End():
                self.end = instruction

    def choices(self) -> list[Callable[[], None]]:
        """Return the possible next events."""
        found: list[Callable[[], None]] = []
        if self.arriving:
            found.append(lambda: self.tell(self.arriving.pop(0)))
        for executor, orders in self.orders.items():
            is_leaving = any(source == executor for _, source in self.leaving)
            if orders and not (isinstance(orders[0], messages.Pause) and is_leaving):
                found.append(lambda executor=executor: self._obey(executor))  # type: ignore[misc]
        for index, (_, source) in enumerate(self.moving):
            if source not in self.paused:
                found.append(lambda index=index: self.leaving.append(self.moving.pop(index)))  # type: ignore[misc]
        for index in range(len(self.leaving)):
            found.append(lambda index=index: self._arrive(index))  # type: ignore[misc]
        for executor in self.machine.spec.executors:
            ready = [b for b in self.owned(executor) if self.blocks[b].cursor < self.limit.get(executor, 0)]
            if ready and executor not in self.paused:
                found.append(lambda executor=executor: self._turn(executor))  # type: ignore[misc]
            if self.heard.get(executor, 0) == self.asked and any(self._late(executor)):
                found.append(lambda executor=executor: self._evaluate(executor))  # type: ignore[misc]
        return found

    def _turn(self, executor: int) -> None:
        owned = self.owned(executor)
        step = min(self.blocks[b].cursor for b in owned)
        done = tuple(b for b in owned if self.blocks[b].cursor == step)
        for block in done:
            self.blocks[block].cursor += 1
            self.turns.append((block, step))
        self.arriving.append(Heard(executor, messages.TurnDone(step, done, len(done), 0.1, 0.1, 0.1, 8)))

    def _late(self, executor: int) -> tuple[list[int], list[int]]:
        """Own blocks that are not evaluated yet."""
        data = [b for b in self.owned(executor) if self.blocks[b].evaluated < self.asked]
        rows = [b for b in self.owned(executor, "parameters") if self.rows.get(b, 0) < self.asked]
        return data, rows

    def _evaluate(self, executor: int) -> None:
        data, rows = self._late(executor)
        for block in data:
            self.blocks[block].evaluated = self.asked
        self.rows.update(dict.fromkeys(rows, self.asked))
        sums = {b: {"blocks": 1.0} for b in data}, {b: {"rows": 1.0} for b in rows}
        self.arriving.append(Heard(executor, messages.Evaluated(self.asked, *sums, 0.1)))

    def _obey(self, executor: int) -> None:
        order = self.orders[executor].popleft()
        cursors = {b: self.blocks[b].cursor for b in self.owned(executor)}
        match order:
            case messages.Assign():
                self.arriving.append(Heard(executor, messages.Ready(cursors)))
            case messages.Initialise():
                self.arriving.append(Heard(executor, messages.Initialised()))
            case messages.MayStart(limit):
                self.limit[executor] = limit
            case messages.Evaluate() if messages.Pause() in self.orders[executor]:
                pass  # it is given up
            case messages.Evaluate(epoch):
                self.asked = epoch
                self.heard[executor] = epoch
                self._evaluate(executor)
            case messages.MoveBlocks():
                self.moving.append((order, executor))
            case messages.Pause() if executor in self.dead:
                pass
            case messages.Pause():
                self.paused.add(executor)
                self.arriving.append(Heard(executor, messages.Paused(cursors)))
            case messages.Save(number):
                assert executor in self.paused
                self.arriving.append(Heard(executor, messages.Saved(number)))
            case messages.Continue():
                self.paused.discard(executor)
            case messages.OwnerChanged() | messages.EndStart():
                pass

    def _arrive(self, index: int) -> None:
        order, source = self.leaving.pop(index)
        self.tell(Heard(source, messages.BlocksMoved(order.what, order.blocks, order.destination)))

    def run(self, extra: Mapping[int, Event] | None = None, most: int = 20000) -> None:
        """Let everything happen in random order; `extra` events happen at these moments."""
        self.tell(ExecutorsReady())
        for moment in range(most):
            if self.end is not None:
                return
            if extra and moment in extra:
                event = extra[moment]
                if not isinstance(event, Reconfigure) or not self.machine.is_reconfiguring:
                    self.tell(event)
                continue
            found = self.choices()
            assert found, f"nothing can happen any more in {self.machine.phase}"
            self.rng.choice(found)()
        raise AssertionError("the job does not end")


def start(
    pace: BoundedStaleness,
    seed: int = 0,
    executors: Sequence[int] = (1, 2, 3),
    data: Sequence[int] = (1, 2, 1, 2, 1),
    parameters: Sequence[int] = (3, 3),
    stop: JobStop | None = None,
    **options: object,
) -> Executors:
    spec = JobSpec(tuple(executors), pace, stop or JobStop(pace.max_epochs))
    machine = JobMachine(spec, data, parameters, **options)  # type: ignore[arg-type]
    return Executors(machine, random.Random(seed), {b: Block() for b in range(len(data))})


PACES = st.builds(
    BoundedStaleness,
    steps_per_epoch=st.integers(1, 4),
    staleness=st.sampled_from([0, 1, 2]),
    max_epochs=st.integers(1, 4),
    objective_every=st.integers(1, 3),
) | st.builds(
    BoundedStaleness,
    steps_per_epoch=st.just(1),
    staleness=st.none(),
    max_epochs=st.integers(1, 5),
    objective_every=st.integers(1, 3),
)


def objectives_of(pace: BoundedStaleness) -> list[int]:
    """Return the epochs after which a job computes its objective."""
    last = pace.max_epochs
    return [epoch for epoch in range(1, last + 1) if epoch % pace.objective_every == 0 or epoch == last]


@settings(max_examples=75, deadline=None)
@given(pace=PACES, seed=st.integers(0, 10**6))
def test_every_block_does_every_step_once_in_order_and_no_step_runs_ahead(
    pace: BoundedStaleness, seed: int
) -> None:
    job = start(pace, seed)
    job.run()
    assert job.end is not None
    assert job.end.outcome == "done"
    steps = pace.steps_per_epoch * pace.max_epochs
    for block in job.blocks:
        assert [step for b, step in job.turns if b == block] == list(range(steps))
    ahead = 1 if pace.staleness is None else pace.staleness
    done = dict.fromkeys(job.blocks, 0)
    for block, step in job.turns:
        assert step <= min(done.values()) + ahead
        done[block] = step + 1
    assert [each.epoch for each in job.ended] == list(range(1, pace.max_epochs + 1))
    measured = [each.epoch for each in job.ended if each.record is not None]
    assert measured == objectives_of(pace)
    assert job.manifests[-1].epoch == pace.max_epochs


@settings(max_examples=75, deadline=None)
@given(
    pace=PACES,
    seed=st.integers(0, 10**6),
    moments=st.lists(st.integers(1, 150), unique=True, max_size=8),
    saves=st.lists(st.integers(1, 150), unique=True, max_size=3),
)
def test_blocks_move_and_checkpoints_are_written_while_it_trains(
    pace: BoundedStaleness, seed: int, moments: list[int], saves: list[int]
) -> None:
    job = start(pace, seed)
    rng = random.Random(seed)
    extra: dict[int, Event] = {moment: SaveRequested() for moment in saves}

    def move_any() -> None:
        """Reconfigure to random owners, from those of this moment."""
        if job.machine.is_reconfiguring or job.machine.phase != "running":
            return
        moves: list[BlockMove] = []
        kinds: list[tuple[messages.What, int]] = [("data", 5), ("parameters", 2)]
        for what, count in kinds:
            for block in range(count):
                source, destination = job.machine.owners(what)[block], rng.choice((1, 2, 3))
                if source != destination and rng.random() < 0.6:
                    after = tuple(i for i in range(len(moves)) if rng.random() < 0.3)
                    moves.append(BlockMove(what, (block,), source, destination, after))
        job.tell(Reconfigure(tuple(moves), "test"))

    job.tell(ExecutorsReady())
    for moment in itertools.count():
        if job.end is not None:
            break
        assert moment < 20000
        if moment in moments:
            move_any()
        elif moment in extra:
            job.tell(extra[moment])
        else:
            found = job.choices()
            assert found, job.machine.phase
            rng.choice(found)()
    assert job.end is not None
    assert job.end.outcome == "done"
    steps = pace.steps_per_epoch * pace.max_epochs
    for block in job.blocks:
        assert [step for b, step in job.turns if b == block] == list(range(steps))
    for manifest in job.manifests:
        assert set(manifest.data_owner) | set(manifest.parameter_owner) <= {1, 2, 3}


@settings(max_examples=30, deadline=None)
@given(pace=PACES, seed=st.integers(0, 10**6), moment=st.integers(0, 60))
def test_a_stop_saves_and_the_next_start_goes_on(pace: BoundedStaleness, seed: int, moment: int) -> None:
    first = start(pace, seed)
    first.run({moment: StopRequested("TERM")})
    assert first.end is not None
    if first.end.outcome == "done":
        return
    assert (first.end.outcome, first.end.detail) == ("suspended", "TERM")
    saved = first.manifests[-1] if first.manifests else None
    again = start(
        pace,
        seed + 1,
        data=(2, 2, 2, 2, 2),
        parameters=(1, 3),
        saved=None if saved is None else saved.number,
        history=() if saved is None else saved.history,
    )
    if saved is not None:
        again.blocks = {b: Block(block.cursor) for b, block in first.blocks.items()}
    again.run()
    assert again.end is not None
    assert again.end.outcome == "done"
    steps = pace.steps_per_epoch * pace.max_epochs
    kept = [] if saved is None else first.turns
    for block in again.blocks:
        assert [step for b, step in [*kept, *again.turns] if b == block] == list(range(steps))
    assert [record.epoch for record in again.machine.history] == objectives_of(pace)


def orders_of(instructions: Sequence[Instruction]) -> list[messages.Order]:
    return [each.order for each in instructions if isinstance(each, Send)]


def evaluated(executor: int) -> Heard:
    sums = {executor - 1: {"blocks": 1.0}}
    return Heard(executor, messages.Evaluated(1, sums, {0: {"rows": 1.0}} if executor == 2 else {}, 0.1))


def measuring() -> JobMachine:
    """An `async` job of two executors that compute its first objective, and have done another epoch since."""
    spec = JobSpec((1, 2), BoundedStaleness(1, None, 9), JobStop(9))
    machine = JobMachine(spec, (1, 2), (2,))
    machine.handle(ExecutorsReady())
    for executor in (1, 2):
        machine.handle(Heard(executor, messages.Ready({executor - 1: 0})))
    for executor in (1, 2):
        machine.handle(Heard(executor, messages.Initialised()))
    for step, executor in ((0, 1), (0, 2), (1, 1), (1, 2)):
        turn = messages.TurnDone(step, (executor - 1,), 1, 0.1, 0.1, 0.1, 8)
        asked = orders_of(machine.handle(Heard(executor, turn)))
        assert (messages.Evaluate(1) in asked) == ((step, executor) == (0, 2))
    return machine


def save(machine: JobMachine) -> list[Instruction]:
    """Let the executors pause and write a checkpoint; returns what follows it."""
    for executor in (1, 2):
        machine.handle(Heard(executor, messages.Paused({executor - 1: 2})))
    for executor in (1, 2):
        found = machine.handle(Heard(executor, messages.Saved(1)))
    (manifest,) = found
    assert isinstance(manifest, WriteManifest)
    assert manifest.epoch == 2
    return machine.handle(ManifestWritten(1))


@pytest.mark.parametrize(
    "event", [SaveRequested(), StopRequested("moves", gives_up_objective=False)], ids=["save", "move"]
)
def test_a_pause_comes_before_the_next_objective_that_is_due(event: Event) -> None:
    """Otherwise it waits for as long as workers do epochs faster than objectives are computed."""
    machine = measuring()
    machine.handle(evaluated(1))
    assert machine.handle(evaluated(2)) == [ComputeMetrics(1, {"blocks": 2.0, "rows": 1.0})]
    assert machine.handle(event) == []
    assert orders_of(machine.handle(MetricsComputed(1, {"loss": 1.0}, 1.0))) == [messages.Pause()]
    after = save(machine)
    assert [record.epoch for record in machine.history] == [1]
    if isinstance(event, StopRequested):
        assert after == [End("suspended", "", "moves")]
    else:
        assert orders_of(after) == [messages.Continue(), messages.Evaluate(2)]


@pytest.mark.parametrize("late", ["terms", "metrics"])
def test_a_stop_gives_up_an_objective_and_the_next_start_computes_all_of_it(late: str) -> None:
    machine = measuring()
    machine.handle(evaluated(1))
    if late == "metrics":
        assert machine.handle(evaluated(2)) == [ComputeMetrics(1, {"blocks": 2.0, "rows": 1.0})]
    assert orders_of(machine.handle(StopRequested("TERM"))) == [messages.Pause()]
    late_event = evaluated(2) if late == "terms" else MetricsComputed(1, {"loss": 1.0}, 1.0)
    assert machine.handle(late_event) == []
    assert save(machine) == [End("suspended", "", "TERM")]
    assert machine.history == ()
    again = JobMachine(machine.spec, (1, 2), (2,), 1)
    again.handle(ExecutorsReady())
    again.handle(Heard(1, messages.Ready({0: 2})))
    asked = orders_of(again.handle(Heard(2, messages.Ready({1: 2}))))
    assert asked == [messages.Evaluate(1), messages.MayStart(4)]


def test_a_job_that_moves_waits_for_an_objective_unless_the_run_stops() -> None:
    machine = measuring()
    machine.handle(evaluated(1))
    assert machine.handle(StopRequested("moves", gives_up_objective=False)) == []
    assert orders_of(machine.handle(StopRequested("TERM"))) == [messages.Pause()]
    assert save(machine) == [End("suspended", "", "moves")]


@pytest.mark.parametrize(
    ("event", "order"),
    [
        (StopRequested("TERM"), messages.Pause()),
        (StopRequested("moves", gives_up_objective=False), messages.Evaluate(1)),
        (SaveRequested(), messages.Evaluate(1)),
    ],
    ids=["stop", "move", "save"],
)
def test_in_sync_only_a_stop_of_the_run_comes_before_an_objective(
    event: Event, order: messages.Order
) -> None:
    """No step runs ahead of it there; and a job that must move may be over with its objective."""
    machine = JobMachine(JobSpec((1, 2), BoundedStaleness(1, 0, 9), JobStop(9)), (1, 2), (2,))
    machine.handle(ExecutorsReady())
    for report in (messages.Ready({}), messages.Initialised()):
        for executor in (1, 2):
            machine.handle(Heard(executor, report))
    first, second = (messages.TurnDone(0, (block,), 1, 0.1, 0.1, 0.1, 8) for block in (0, 1))
    machine.handle(Heard(1, first))
    assert machine.handle(event) == []
    assert orders_of(machine.handle(Heard(2, second))) == [order]


def test_the_stop_rule_watches_the_first_metric() -> None:
    job = start(BoundedStaleness(2, 0, 50), stop=JobStop(50, target=0.25))
    job.run()
    assert job.end is not None
    assert job.end.detail == "loss 0.25 <= target 0.25"
    assert [record.epoch for record in job.machine.history] == [1, 2, 3, 4]


def test_patience_counts_objectives() -> None:
    job = start(BoundedStaleness(1, 0, 50, objective_every=3), stop=JobStop(50, patience=2))
    job.metric = lambda epoch: 1.0 if epoch > 3 else 0.5
    job.run()
    assert job.end is not None
    assert job.end.detail.startswith("loss did not improve for 2 epochs")
    assert [record.epoch for record in job.machine.history] == [3, 6, 9]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_objective_that_is_no_number_fails_the_job(value: float) -> None:
    job = start(BoundedStaleness(1, 0, 9))
    job.metric = lambda epoch: value if epoch == 2 else 1.0
    job.run()
    assert job.end is not None
    assert (job.end.outcome, job.end.cause) == ("failed", "diverged")
    assert job.end.detail.startswith(f"loss is {value} after epoch 2")


def test_an_unknown_monitor_is_named_with_the_known_ones() -> None:
    job = start(BoundedStaleness(1, 0, 9), stop=JobStop(9, monitor="rmse"))
    job.run()
    assert job.end is not None
    assert job.end.detail == "stop.monitor: got 'rmse', but the app has the metrics: loss"
    assert (job.end.outcome, job.end.exit_code) == ("suspended", 2)  # the file can be mended


def test_a_monitor_that_was_changed_before_the_job_goes_on_is_refused_too() -> None:
    done = start(BoundedStaleness(1, 0, 3))
    done.run()
    job = start(
        BoundedStaleness(1, 0, 9), stop=JobStop(9, monitor="rmse"), saved=1, history=done.machine.history
    )
    job.run()
    assert job.end is not None
    assert job.end.detail == "stop.monitor: got 'rmse', but the app has the metrics: loss"
    assert (job.end.outcome, job.end.exit_code) == ("suspended", 2)


def test_a_failure_ends_the_job() -> None:
    job = start(BoundedStaleness(1, 0, 9))
    failed = messages.Failed("app", "mine.py:3: ValueError: no")
    later = messages.Failed("app", "another one")
    job.dead = {2, 3}
    job.run({20: Heard(2, failed), 21: Heard(3, later)})
    assert job.end == End("failed", "app", "mine.py:3: ValueError: no")
    assert job.paused == {1}


def test_what_can_be_mended_ends_the_start_and_not_the_job() -> None:
    job = start(BoundedStaleness(2, 0, 9))
    full = messages.Failed("error", "the disk is full", 2)
    job.dead = {2}
    job.run({30: Heard(2, full)})
    assert job.end == End("suspended", "error", "the disk is full", 2)


@pytest.mark.parametrize("moment", [0, 3, 40])
@pytest.mark.parametrize("outcome", ["done", "suspended"])
def test_an_end_on_request_saves_nothing_and_leaves_no_executor_waiting(
    outcome: Outcome, moment: int
) -> None:
    executors = start(BoundedStaleness(1, None, 1000))
    executors.run({moment: EndRequested(outcome, "enough"), moment + 1: EndRequested("suspended", "Ctrl-C")})
    assert executors.end == End(outcome, "", "enough")
    assert executors.paused == set(executors.machine.spec.executors)
    assert not executors.manifests


def test_a_stop_does_not_wait_for_blocks_that_have_not_left() -> None:
    job = start(BoundedStaleness(2, 0, 4))
    job.tell(ExecutorsReady())
    while job.machine.phase != "running":
        job.rng.choice(job.choices())()
    moves = (BlockMove("data", (0, 2), 1, 2), BlockMove("data", (1,), 2, 3, (0,)))
    job.tell(Reconfigure(moves, "test"))
    job.orders[1].remove(messages.MoveBlocks("data", (0, 2), 2))  # executor 1 only ever gives up block 2
    job.tell(Heard(1, messages.BlocksMoved("data", (2,), 2)))
    job.tell(StopRequested("TERM"))
    while job.end is None:
        job.rng.choice(job.choices())()
    assert (job.end.outcome, job.end.detail) == ("suspended", "TERM")
    assert job.manifests[-1].data_owner == (1, 2, 2, 2, 1)
    (changed,) = job.reconfigured
    assert changed.request.moves == (BlockMove("data", (2,), 1, 2),)


def test_roles_are_what_executors_own() -> None:
    machine = start(BoundedStaleness(1, 0, 1), executors=(1, 2, 3, 4), data=(1, 2), parameters=(2, 3)).machine
    assert [machine.role_of(executor) for executor in (1, 2, 3, 4)] == ["worker", "both", "server", "standby"]


def test_a_finished_job_that_starts_again_saves_and_ends() -> None:
    history = (EpochRecord(1, 0, {"loss": 1.0}, 1.0),)
    job = start(BoundedStaleness(2, 0, 1), saved=4, history=history)
    job.blocks = {b: Block(2, 1) for b in range(5)}
    job.run()
    assert job.end == End("done", "", "1 of at most 1 epochs")
    assert job.turns == []


@pytest.mark.parametrize(
    "moves",
    [
        (BlockMove("data", (1,), 1, 2),),  # not the owner
        (BlockMove("data", (0,), 1, 1),),
        (BlockMove("data", (), 1, 2),),
        (BlockMove("data", (0,), 1, 2, after=(0,)),),
    ],
)
def test_a_move_that_is_none_is_an_error(moves: tuple[BlockMove, ...]) -> None:
    job = start(BoundedStaleness(1, 0, 1))
    job.tell(ExecutorsReady())
    while job.machine.phase != "running":
        job.choices()[0]()
    with pytest.raises(JobError, match="move 0"):
        job.tell(Reconfigure(moves, "test"))


def test_a_step_that_is_left_out_is_an_error() -> None:
    job = start(BoundedStaleness(3, 0, 1))
    job.tell(ExecutorsReady())
    while job.machine.phase != "running":
        job.choices()[0]()
    with pytest.raises(JobError, match="data block 0 did step 1, but goes on at 0"):
        job.tell(Heard(1, messages.TurnDone(1, (0,), 1, 0.0, 0.0, 0.0, 0)))


def test_in_sync_a_pause_waits_until_all_blocks_have_done_the_step() -> None:
    """A checkpoint amid a step would show updates of the step to blocks that take it after a resume."""
    job = start(BoundedStaleness(4, 0, 9))
    while job.machine.phase != "running":
        job.choices()[0]() if job.end is None and job.choices() else job.tell(ExecutorsReady())
    for executor in (1, 2):
        while job.orders[executor]:
            job._obey(executor)
    job._turn(1)
    job.tell(job.arriving.pop())
    job.tell(SaveRequested())
    assert job.machine.phase == "running"
    assert not any(messages.Pause() in orders for orders in job.orders.values())
    job._turn(2)
    job.tell(job.arriving.pop())
    assert job.machine.phase == "pausing"
    assert all(orders[-1] == messages.Pause() for orders in job.orders.values())
    assert not any(isinstance(order, messages.MayStart) for order in job.orders[1])
    while job.machine.phase != "running":
        job.choices()[0]()
    assert [manifest.step for manifest in job.manifests] == [1]
    assert messages.MayStart(2) in job.orders[1]


def test_it_iterates_unless_it_starts_measures_or_saves() -> None:
    job = start(BoundedStaleness(2, 0, 2))
    seen: list[tuple[str, int, bool]] = [("new", 0, job.machine.is_iterating)]
    job.tell(ExecutorsReady())
    while job.end is None:
        now = (job.machine.phase, job.machine.epochs, job.machine.is_iterating)
        if now != seen[-1]:
            seen.append(now)
        job.choices()[0]()
    loading = [("new", 0, False), ("loading", 0, False), ("initialising", 0, False)]
    trained = [("running", 0, True), ("running", 1, False), ("running", 1, True), ("running", 2, False)]
    assert seen == [*loading, *trained, ("pausing", 2, False), ("saving", 2, False), ("writing", 2, False)]
